"""Paces the pages that follow: all of them together take at most a share of the time.

A look at what a page shows costs seconds: the processor time of its reads and of its rendering, and the time that a
server takes to answer. The dearer a look, and the more pages follow, the later comes the next one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import anyio

T = TypeVar("T")
PAUSE = 1.0
"""The least seconds between two looks of a page."""
CALM = 5.0
"""The same for a page that people read or point at for long, such as one with charts."""
SHARE = 0.04
"""The pages of `view` take at most this share of the time of one processor, and of the server that they follow."""
AGENTS_SHARE = 0.015
"""The same for the pages of `serve --view`, which has agents in its process."""


@dataclass(slots=True)
class Cost:
    """What has been done so far for one look."""

    seconds: float = 0.0


_COST: ContextVar[Cost | None] = ContextVar("cost", default=None)


@contextmanager
def counted() -> Iterator[Cost]:
    """Yield the cost of the work in the block, also of its work on other threads. It counts for outer blocks, too."""
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
    """Add the seconds of the block to the cost, by default the processor time of this thread.

    A block that awaits needs another clock.
    """
    began = clock()
    try:
        yield
    finally:
        cost = _COST.get()
        if cost is not None:
            cost.seconds += clock() - began


async def aside(compute: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
    """Return the result of a function that takes long. It runs on another thread, and counts for the cost."""

    def run() -> T:
        with spending():
            return compute()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


def pause(cost: float, pages: int, share: float, *, calm: bool = False) -> float:
    """Return the seconds from one look to the next, if each of so many pages has looks with this cost."""
    return max(CALM if calm else PAUSE, cost * pages / share)
