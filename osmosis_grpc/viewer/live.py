"""Streams the changes of live pages to browsers as server-sent events.

All live pages together use at most a share of the processor time. So expensive updates come less often.
"""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

from osmosis_grpc.records.reading.list_filter import FilterError
from osmosis_grpc.records.reading.source_port import SourceError

T = TypeVar("T")
PAUSE = 1.0
"""The least seconds between two updates of a page."""
CALM = 5.0
"""The same for a page that users study for longer, such as one with charts."""
SHARE = 0.04
"""The share of one processor's time that the pages of `view` may use, in the viewer and in the server."""
AGENTS_SHARE = 0.015
"""The same for the pages of `serve --view`, where agents run in the same process."""
PING = 15
"""Seconds between two comments that keep an idle connection open."""
Sent = Iterable[tuple[str, str]]
Wait = Callable[[float, float, bool], Awaitable[bool]]
"""Waits for the next update; see Feeds._wait."""


@dataclass(slots=True)
class Cost:
    """The time that one update has taken so far."""

    seconds: float = 0.0


_COST: ContextVar[Cost | None] = ContextVar("cost", default=None)


@contextmanager
def counted() -> Iterator[Cost]:
    """Measure the cost of the work in the block, including its work on other threads. Outer blocks count it, too."""
    outer, cost = _COST.get(), Cost()
    token = _COST.set(cost)
    try:
        yield cost
    finally:
        _COST.reset(token)
        if outer is not None:
            outer.seconds += cost.seconds


@contextmanager
def spending(clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
    """Add the time of the block to the cost. By default, it is the processor time of this thread.

    Pass another clock for a block that awaits.
    """
    began = clock()
    try:
        yield
    finally:
        cost = _COST.get()
        if cost is not None:
            cost.seconds += clock() - began


async def aside(compute: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run a slow function on another thread, and return its result. Its time counts as cost."""

    def run() -> T:
        with spending():
            return compute()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


def pause(cost: float, pages: int, share: float, *, calm: bool = False) -> float:
    """Return how many seconds to wait between two updates, if each of `pages` pages has updates with this cost."""
    return max(CALM if calm else PAUSE, cost * pages / share)


@dataclass(frozen=True, slots=True)
class Update:
    """The new content of a page, as events."""

    number: int
    events: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class Feed(Generic[T]):
    """The changing content of a page. `look` reads it, and `shown` renders it each time that its `key` changes.

    `look` is not called again after a result for which `ended` is true. `calm` is passed to pause().
    """

    look: Callable[[], Awaitable[T]]
    key: Callable[[T], Hashable]
    shown: Callable[[T], Sent]
    ended: Callable[[T], bool] = lambda found: False
    calm: bool = False


class Feeds:
    """The feeds of the open pages. They use at most a `share` of the time, and end when `stopping` is set."""

    def __init__(self, share: float, stopping: asyncio.Event) -> None:
        self._share = share
        self._stopping = stopping
        self._open: weakref.WeakValueDictionary[Hashable, _Followed[Any]] = weakref.WeakValueDictionary()

    def stream(self, name: Hashable, feed: Feed[T]) -> EventSourceResponse:
        """Return a response with the updates of a feed. Feeds with the same name share their updates.

        A failed read is sent as the event `problem`, and the stream continues.
        """
        followed = self._open.get(name)
        if followed is None:
            followed = self._open[name] = _Followed(feed)
        return EventSourceResponse(self._events(followed), ping=PING, headers={"X-Accel-Buffering": "no"})

    async def _events(self, followed: "_Followed[Any]") -> AsyncIterator[bytes]:
        opened, seen, missed = time.monotonic(), 0, 0
        while True:
            # The page was rendered when it was opened, so it may be newer than the last update of other pages. Skip an
            # update that began more than a pause before that.
            update = await followed.update(seen, opened - PAUSE, self._wait)
            if update is None:
                return
            sending = time.monotonic()
            yield update.events
            late = int((time.monotonic() - sending) / PAUSE)
            if late:
                missed += late
                yield _event("missed", str(missed))
            if update.ended:
                yield _event("ended", "")
                return
            seen = update.number

    async def _wait(self, began: float, cost: float, calm: bool) -> bool:
        """Wait until the next update is due, given when the last one began. Return False if there will be none."""
        if self._stopping.is_set():
            return False
        left = began + pause(cost, len(self._open), self._share, calm=calm) - time.monotonic()
        try:
            await asyncio.wait_for(self._stopping.wait(), max(0.0, left))
        except TimeoutError:
            return True
        return False


class _Followed(Generic[T]):
    """A feed that open pages show. The page that has waited longest makes the next update for all of them."""

    def __init__(self, feed: Feed[T]) -> None:
        self._feed = feed
        self._turn = asyncio.Lock()
        self._began, self._cost = float("-inf"), 0.0
        self._key: Hashable = None
        self._problem = ""
        self._newest = Update(0, b"", False)

    async def update(
        self, seen: int, since: float, wait: Callable[[float, float, bool], Awaitable[bool]]
    ) -> Update | None:
        """Return an update newer than number `seen` that began at `since` or later, or None if there will be none."""
        while True:
            async with self._turn:
                if self._newest.number > seen and self._began >= since:
                    return self._newest
                if not await wait(self._began, self._cost, self._feed.calm):
                    return None
                await self._look()

    async def _look(self) -> None:
        began = time.monotonic()
        with counted() as cost:
            try:
                found = await self._feed.look()
            except (SourceError, FilterError) as error:
                if self._problem != str(error):
                    self._problem = str(error)
                    self._put(_event("problem", self._problem))
            else:
                with spending():
                    self._render(found)
        self._began, self._cost = began, cost.seconds

    def _render(self, found: T) -> None:
        key, ended = self._feed.key(found), self._feed.ended(found)
        if self._problem or key != self._key:
            self._key, self._problem = key, ""
            events = [_event(name, data) for name, data in self._feed.shown(found)]
            self._put(b"".join((_event("problem", ""), *events)), ended)
        elif ended != self._newest.ended:
            self._put(self._newest.events, ended)

    def _put(self, events: bytes, ended: bool = False) -> None:
        self._newest = Update(self._newest.number + 1, events, ended)


def _event(name: str, data: str) -> bytes:
    return ServerSentEvent(data, event=name).encode()
