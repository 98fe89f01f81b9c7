"""The scripted policy: the reply of benchmarks.script, with made-up tokens that are ready to be sent.

A prompt grows as those of the mock policies do: prompt(n + 1) = prompt(n) + reply(n) + 16 ids per new message.
Only what is new is told, from `prompt_prefix` on.
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
    """As many ids of a large vocabulary with logprobs; the same ones every time."""
    drawn = np.random.default_rng(7)
    return TokenBlock.of(drawn.integers(0, VOCABULARY, count), -drawn.exponential(0.5, count))


def scripted(tokens: int, latency: float = 0.0) -> Policy:
    """A policy that answers at once, or after `latency` seconds. Without tokens, replies carry text alone."""
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
    """A policy that stalls."""
    await asyncio.Event().wait()
