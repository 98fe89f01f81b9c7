"""One call of TransformersGenerator: the tokens that were sampled for it, and its end."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest

TAIL = 8
"""A stop text is looked for in the text of as many tokens as it has bytes, and so many more."""


class SampledRow:
    """The tokens of one call. take() runs on the thread of the model, everything else on the event loop."""

    def __init__(
        self, request: GenerateRequest, most: int, end_ids: frozenset[int], decode: Callable[[list[int]], str]
    ) -> None:
        self.request = request
        self.prompt = request.prompt_ids
        self.result: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self.ids: list[int] = []
        self.random: Any = None
        """The torch.Generator of the call, made with its first token."""
        self.interrupted = False
        self.ended: FinishReason | None = None
        self._logprobs: list[float] = []
        self._most = most
        sampling = request.sampling
        self._end_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else end_ids)
        self._decode = decode
        self._tail = max((len(text.encode()) for text in sampling.stop), default=0) + TAIL

    def take(self, token: int, logprob: float) -> None:
        """Add a token. Sets `ended` after the last one."""
        if self.interrupted:
            self.ended = FinishReason.ABORTED
            return
        self.ids.append(token)
        self._logprobs.append(logprob)
        if token in self._end_ids or self._has_stop_text():
            self.ended = FinishReason.STOP
        elif len(self.ids) >= self._most:
            self.ended = FinishReason.LENGTH

    def finish(self, version: str) -> None:
        """Set the result, unless the caller has left."""
        if self.result.done():
            return
        self.result.set_result(
            Generated(
                token_ids=np.array(self.ids, dtype="<u4"),
                logprobs=np.array(self._logprobs, dtype="<f4"),
                finish_reason=self.ended or FinishReason.ABORTED,
                weight_version=version,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Raise an error from the call, unless its caller has left."""
        if not self.result.done():
            self.result.set_exception(error)

    def _has_stop_text(self) -> bool:
        stop = self.request.sampling.stop
        if not stop:
            return False
        text = self._decode(self.ids[-self._tail :])
        return any(text_ in text for text_ in stop)
