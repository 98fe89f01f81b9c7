"""Runs blocking functions on a pool of daemon threads, and waits for a future so that signals end the wait.

Daemon threads, because a function that never returns must not keep the process alive.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar

from osmosis_grpc.supervise.fork_guard import forks
from osmosis_grpc.supervise.jobs import OnFailure, job
from osmosis_grpc.supervise.unsupervised import thread

log = logging.getLogger(__name__)

WORK = job("supervise.work", OnFailure.RESTART, "thread")

WARN_EVERY = 60.0
"""The fewest seconds between two warnings of a pool that functions wait."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    started: Callable[[], None]
    """Called on the thread before the function."""
    future: "Future[Any]" = field(default_factory=Future)
    ended: bool = False
    lost: bool = False


class DaemonThreads:
    """Runs functions on up to `count` threads, which start when they are needed.

    A thread is lost while it runs a function whose caller was cancelled. Up to `replaced` lost threads are replaced, so
    that functions that never return do not block the pool. A pool with a `name` logs when calls wait because threads
    are lost.
    """

    def __init__(self, count: int = 1, *, replaced: int = 0, name: str = "") -> None:
        if count < 1:
            raise ValueError(f"threads: {count} is less than 1")
        self._count, self._replaced, self._name = count, replaced, name
        self._warned = float("-inf")
        self._begin()

    def _begin(self) -> None:
        self._forks = forks()
        self._threads = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._unfinished = 0
        """The number of functions that are queued or running."""
        self._lost = 0

    async def run(self, function: Callable[[], T], started: Callable[[], None] | None = None) -> T:
        """Call a function on a thread, in the order of the calls. Cancelling does not stop a running function.

        `started` is called on the event loop when a thread begins with the function.
        """
        if self._forks != forks():  # the threads do not exist in a forked child
            self._begin()
        loop = asyncio.get_running_loop()

        def begun() -> None:
            if started is not None and not result.done():
                started()

        def on_thread() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(begun)

        work = _Job(function, on_thread if started is not None else lambda: None)
        result: asyncio.Future[T] = asyncio.wrap_future(work.future)
        with self._lock:
            self._unfinished += 1
            self._jobs.put(work)
            self._grow()
        try:
            return await result
        except asyncio.CancelledError:
            with self._lock:
                if work.future.running() and not work.ended:
                    work.lost = True
                    self._lost += 1
                    self._grow()
            raise

    @property
    def lost(self) -> int:
        """The number of lost threads."""
        return self._lost

    def close(self) -> None:
        """End the threads once the queued functions are done. A later run() starts new ones."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)
            self._threads, self._jobs = 0, SimpleQueue()

    @property
    def _most(self) -> int:
        return self._count + min(self._lost, self._replaced)

    def _grow(self) -> None:
        """Start a thread if a function needs one. Log if that is not possible because too many are lost."""
        if self._unfinished <= self._threads:
            return
        if self._threads < self._most:
            jobs = self._jobs
            thread(WORK, lambda: self._work(jobs))
            self._threads += 1
        elif self._name and self._lost and time.monotonic() - self._warned > WARN_EVERY:
            self._warned = time.monotonic()
            text = "%s: calls that wait for a thread: %d; threads with a call that was given up: %d of %d"
            log.warning(text, self._name, self._unfinished - self._threads, self._lost, self._threads)

    def _work(self, jobs: "SimpleQueue[_Job | None]") -> bool:
        """Call one function on this thread. Return False to end the thread."""
        work = jobs.get()
        if work is None:
            return False
        future = work.future
        try:
            if future.set_running_or_notify_cancel():
                work.started()
                future.set_result(work.function())
        except StopIteration as stop:  # asyncio futures refuse StopIteration
            future.set_exception(RuntimeError(f"the function raised {stop!r}").with_traceback(stop.__traceback__))
        except BaseException as error:
            future.set_exception(error)
        with self._lock:
            work.ended = True
            self._unfinished -= 1
            self._lost -= work.lost
            if jobs is self._jobs and self._threads > self._most:
                self._threads -= 1
                return False
        return True


_SIGNAL_CHECK = 0.5
"""A waiting thread wakes up this often (seconds), so that Python calls the handlers of signals."""


def result_of(future: "concurrent.futures.Future[T]", timeout: float | None = None) -> T:
    """Wait for the result of a future. A signal such as Ctrl-C ends the wait within half a second.

    `future.result()` would keep waiting if another thread got the signal, or if it came just before the wait. Raises
    the error of the future, CancelledError, or TimeoutError after `timeout` seconds.
    """
    left = float("inf") if timeout is None else timeout
    while True:
        try:
            future.exception(min(left, _SIGNAL_CHECK))  # raises no error of the future itself
            break
        except TimeoutError:
            left -= _SIGNAL_CHECK
            if left <= 0:
                raise
    return future.result()
