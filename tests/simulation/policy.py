"""The policy of a simulated trainer. Each sampling has a draw of its own, and the reply depends on it.

So two samplings of one chat differ in their text and their tokens, and a chat that is sampled twice is seen.
"""

import asyncio
import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from osmosis_grpc.protocol.errors import Internal, Unavailable
from osmosis_grpc.trainer import ChatRequest, ChatResponse, TokenBlock
from tests.simulation.history import History

_SPAN = np.arange(16, dtype=np.int64)


def tokens_of(text: str) -> TokenBlock:
    """Returns the tokens of a text. Each text has its own."""
    start = zlib.crc32(text.encode())
    ids = (start + 7919 * _SPAN[: 3 + start % 11]) % 50_000
    return TokenBlock.of(ids, -(ids % 997 + 1) / 1000)


class Policy:
    """Answers chats. `behaviour` returns the longest latency in seconds, and the share of the calls that raise."""

    def __init__(
        self,
        trainer: str,
        history: History,
        next_draw: Callable[[], str],
        draw: Random,
        behaviour: Callable[[], tuple[float, float]],
    ) -> None:
        self._trainer, self._note, self._next_draw = trainer, history.note, next_draw
        self._random, self._behaviour = draw, behaviour

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        draw = self._next_draw()
        of = request.rollout_id, request.attempt
        name = {"sample": request.sample, "chat": request.chat_number, "draw": draw}
        self._note(self._trainer, "sampled", *of, **name)
        latency, share = self._behaviour()
        fails = self._random.random() < share
        try:
            await asyncio.sleep(latency * self._random.random() ** 2)  # the clock is simulated
        except asyncio.CancelledError:
            self._note(self._trainer, "policy cancelled", *of, **name)
            raise
        if fails:
            error = Unavailable("the engine is busy") if self._random.random() < 0.7 else Internal("the engine broke")
            self._note(self._trainer, "policy failed", *of, error=type(error).__name__, **name)
            raise error
        text = f"{request.rollout_id} {request.sample} {request.chat_number} {draw}"
        message: dict[str, Any] = {"role": "assistant", "content": f"reply to {text}"}
        drawn = zlib.crc32(text.encode())
        if request.sample == "main" and drawn % 3 == 0:
            numbers = json.dumps({"a": drawn % 89, "b": drawn % 83})
            call = {"id": f"call {draw}", "type": "function", "function": {"name": "add", "arguments": numbers}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        known = [] if request.known_ids is None else [request.known_ids]
        new = request.messages[request.prefix_len if known else 0 :]
        prompt = np.concatenate([*known, *(tokens_of(json.dumps(m, sort_keys=True)).ids for m in new)]).astype("<u4")
        tokens = tokens_of(text)
        self._note(self._trainer, "replied", *of, ids=tuple(tokens.ids.tolist()), **name)
        return ChatResponse(message=message, tokens=tokens, prompt_ids=prompt, extra={"draw": draw})
