"""Retries a broken stream with a backoff, until the server was away for too long."""

import asyncio
import time

from osmosis_grpc.errors import CallError
from osmosis_grpc.supervise import Backoff
from osmosis_grpc.trainer.unreachable import Unreached

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0


class StreamRetry:
    """The retries of one stream. `unreached` warns while the server is away."""

    def __init__(self, lost_after: float, unreached: Unreached) -> None:
        self._lost_after = lost_after
        self._unreached = unreached
        self._last_answer, self._backoff = time.monotonic(), Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    def renew(self) -> None:
        """Begin anew: the server has answered."""
        self._last_answer = time.monotonic()
        self._unreached.reached()
        self._backoff.reset()

    async def pause(self, error: CallError) -> None:
        """Wait before the next try. Raises `error` if it is final, or if the server was away for `lost_after`."""
        if not error.retryable or time.monotonic() - self._last_answer > self._lost_after:
            raise error
        self._unreached.failed(error)
        await asyncio.sleep(self._backoff.next())
