"""The scripted policy: returns the reply of benchmarks.script with prepared tokens.

A prompt grows as with the mock policies: prompt(n + 1) = prompt(n) + reply(n) + 16 ids per new message. A reply carries
only the new ids, from `prompt_prefix` on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from benchmarks.script import IDS_PER_MESSAGE, REPLY, VOCABULARY
from osmosis_grpc.trainer import ChatRequest, ChatResponse, TokenBlock

AsyncPolicy = Callable[[ChatRequest], Awaitable[ChatResponse]]
Policy = Callable[[ChatRequest], ChatResponse] | AsyncPolicy


def made_up_tokens(count: int) -> TokenBlock:
    """Return `count` ids of a large vocabulary with logprobs, the same ones every time."""
    drawn = np.random.default_rng(7)
    return TokenBlock.of(drawn.integers(0, VOCABULARY, count), -drawn.exponential(0.5, count))


def scripted(tokens: int, latency: float = 0.0) -> Policy:
    """Return a policy that answers at once, or after `latency` seconds. With 0 tokens, replies carry only text."""
    block = made_up_tokens(tokens)
    new_ids = made_up_tokens(IDS_PER_MESSAGE * 64).ids
    message = {"role": "assistant", "content": REPLY}

    def answer(request: ChatRequest) -> ChatResponse:
        if not tokens:
            return ChatResponse(message=message)
        known = 0 if request.known_ids is None else len(request.known_ids)
        new = IDS_PER_MESSAGE * (len(request.messages) - request.prefix_len)
        usage = {"prompt_tokens": known + new, "completion_tokens": tokens, "total_tokens": known + new + tokens}
        return ChatResponse(message=message, tokens=block, prompt_ids=new_ids[:new], prompt_prefix=known, usage=usage)

    async def later(request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(latency)
        return answer(request)

    return later if latency else answer


async def never(request: ChatRequest) -> Any:
    """Never answer."""
    await asyncio.Event().wait()
