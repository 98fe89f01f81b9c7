"""A token policy with a scripted generator."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from osmosis_grpc.policies import ChatRenderer, FinishReason, Generated, TokenPolicy, TokenPolicyConfig
from tests.policies.byte_tokenizer import ByteTokenizer, chatml


@dataclass
class Scripted:
    """A generator that returns results, raises errors, and waits for ever at None, one after the other."""

    script: list
    asked: list = field(default_factory=list)
    aborted: list = field(default_factory=list)
    entered: int = 0

    async def generate(self, request):
        self.asked.append(request)
        step = self.script.pop(0)
        if step is None:
            await asyncio.Event().wait()
        if isinstance(step, BaseException):
            raise step
        return step

    async def abort(self, request_id):
        self.aborted.append(request_id)

    async def __aenter__(self):
        self.entered += 1
        return self

    async def __aexit__(self, *exc):
        self.entered -= 1


def generated(ids, reason=FinishReason.STOP, version="", **more):
    ids = np.asarray(ids, dtype="<u4")
    return Generated(
        token_ids=ids, logprobs=((ids % 7) / -10).astype("<f4"), finish_reason=reason, weight_version=version, **more
    )


def policy_of(*script, tokenizer=None, **config):
    tokenizer = tokenizer or ByteTokenizer(chatml)
    generator = Scripted(list(script))
    return TokenPolicy(ChatRenderer(tokenizer), generator, TokenPolicyConfig(**config)), generator, tokenizer
