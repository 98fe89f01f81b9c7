"""Waits for rollouts to end: one stream of all events for all waits of a client."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from osmosis_grpc.errors import CallError, FailedPrecondition, OutOfRange, Unavailable
from osmosis_grpc.supervise import Backoff, OnFailure, Supervisor, job
from osmosis_grpc.trainer.unreachable import Unreached
from osmosis_grpc.types import Completion, RolloutInfo, TrajectoryEvent, events

_Get = Callable[[str, int], Awaitable[RolloutInfo]]
_AllEvents = Callable[[str, bool], AsyncGenerator[tuple[str, TrajectoryEvent | None], None]]

log = logging.getLogger(__name__)

FOLLOW = job("trainer.follow_ends", OnFailure.RESTART)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0


class Patience:
    """With a server that is away: growing pauses, until it was away for too long; `unreached` warns of it."""

    def __init__(self, lost_after: float, unreached: Unreached) -> None:
        self._lost_after = lost_after
        self._unreached = unreached
        self._heard, self._backoff = time.monotonic(), Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    def renew(self) -> None:
        """The server was heard of."""
        self._heard = time.monotonic()
        self._unreached.reached()
        self._backoff.reset()

    async def pause(self, error: CallError) -> None:
        """Wait before the next try. Raises `error` when nothing was heard for too long."""
        if not error.retryable or time.monotonic() - self._heard > self._lost_after:
            raise error
        self._unreached.failed(error)
        await self.rest()

    async def rest(self) -> None:
        """Wait before the next try, whatever happened."""
        await asyncio.sleep(self._backoff.next())


class Watch:
    """Begun with the first wait, ended with the client."""

    def __init__(
        self, get: _Get, all_events: _AllEvents, lost_after: float, unreached: Unreached, supervisor: Supervisor
    ) -> None:
        self._unreached = unreached
        self._supervisor = supervisor
        self._get = get
        self._all_events = all_events
        self._lost_after = lost_after
        self._ended: dict[str, set[asyncio.Event]] = {}
        self._live = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def wait(self, rollout_id: str, attempt: int) -> Completion:
        """Wait for a completion. Raises NotFound, and Unavailable when the server is lost or the client is closed."""
        self._check_open()
        if self._task is None:
            self._task = self._supervisor.start(FOLLOW, self._follow)
        ended = asyncio.Event()
        waiting = self._ended.setdefault(rollout_id, set())
        waiting.add(ended)
        patience = Patience(self._lost_after, self._unreached)
        try:
            await self._live.wait()
            while True:
                self._check_open()
                ended.clear()
                try:
                    info = await self._get(rollout_id, attempt)
                except CallError as error:
                    await patience.pause(error)
                    continue
                if info.completion is not None:
                    return info.completion
                await ended.wait()
                patience.renew()
        finally:
            waiting.discard(ended)
            if not waiting:
                self._ended.pop(rollout_id, None)

    async def close(self) -> None:
        """End the stream, and every wait()."""
        self._closed = True
        self._live.set()
        self._wake_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the client was closed")

    async def _follow(self) -> None:
        """Follow all events; whenever a stream has begun, let everyone who waits look once more."""
        cursor = ""
        patience = Patience(float("inf"), self._unreached)  # whoever waits gives up by itself
        while True:
            try:
                async with aclosing(self._all_events(cursor, not cursor)) as stream:
                    begun = False
                    async for place, event in stream:
                        cursor = place
                        patience.renew()
                        self._live.set()
                        if not begun:
                            begun = True
                            self._wake_all()
                        if event is not None and isinstance(event.kind, events.Ended):
                            self._wake(event.rollout_id)
            except (FailedPrecondition, OutOfRange):
                cursor = ""
            except CallError as error:
                log.info("the event stream broke (%s); following it anew", error)
                self._live.set()  # let GetRollout tell the callers what is wrong
                self._wake_all()
                await patience.rest()

    def _wake_all(self) -> None:
        for rollout_id in list(self._ended):
            self._wake(rollout_id)

    def _wake(self, rollout_id: str) -> None:
        for ended in self._ended.get(rollout_id, ()):
            ended.set()
