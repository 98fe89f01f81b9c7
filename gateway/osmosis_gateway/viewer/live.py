"""Streams the changes of a page to the browser, as server-sent events.

A stream looks at its rollouts every one to two seconds while its page is open, less often if a look takes long.
It keeps no queue: a slow browser gets the newest state, and the number of updates that it missed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

from osmosis_grpc.reading.list_filter import FilterError
from osmosis_grpc.reading.source_port import SourceError

T = TypeVar("T")
PAUSE, LONGEST_PAUSE = 1.0, 2.0
"""The least and the most seconds between two looks."""
SHARE = 0.04
"""A stream takes at most this share of the time, or has the longest pause: `serve --view` has agents beside it."""
PING = 15
"""Seconds between two lines that keep a quiet connection open."""
RETRY = 2_000
"""Milliseconds after which a browser connects again."""

Sent = Iterable[tuple[str, str]]
"""Names of events with their data."""


def stream(
    look: Callable[[], Awaitable[T]],
    key: Callable[[T], Hashable],
    shown: Callable[[T], Sent],
    stopping: asyncio.Event,
    *,
    ended: Callable[[T], bool] = lambda found: False,
) -> EventSourceResponse:
    """Return a response that sends what `shown` returns, first at once and then each time that `key` changes.

    It ends when `stopping` is set, and after something that has `ended`. A read that fails is sent as the event
    `problem`, and the stream goes on.
    """

    async def events() -> AsyncIterator[ServerSentEvent]:
        before: Hashable = None
        problem, missed = "", 0
        while not stopping.is_set():
            began = time.monotonic()
            try:
                found = await look()
            except (SourceError, FilterError) as error:
                if problem != str(error):
                    problem = str(error)
                    yield ServerSentEvent(problem, event="problem")
            else:
                if problem or key(found) != before:
                    before, problem = key(found), ""
                    sending = time.monotonic()
                    yield ServerSentEvent("", event="problem")
                    for name, data in shown(found):
                        yield ServerSentEvent(data, event=name)
                    late = int((time.monotonic() - sending) / PAUSE)
                    if late:
                        missed += late
                        yield ServerSentEvent(str(missed), event="missed")
                if ended(found):
                    yield ServerSentEvent("", event="ended")
                    return
            try:
                took = time.monotonic() - began
                pause = min(LONGEST_PAUSE, max(PAUSE, took / SHARE))
                await asyncio.wait_for(stopping.wait(), max(0.05, pause - took))
            except TimeoutError:
                continue

    return EventSourceResponse(events(), ping=PING, headers={"X-Accel-Buffering": "no"})
