"""An event loop in its own thread, for callers that are not async.

LoopThread runs awaitables and async iterators for other threads. It does not depend on Trainer. anyio's BlockingPortal
does almost the same, but if an async policy blocks the loop, starting a call blocks as well, and Ctrl-C does not end
the program.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from osmosis_grpc.protocol.errors import TrainerFailed, Unavailable
from osmosis_grpc.supervise import ForkGuard, OnFailure, StartedThread, Supervisor, job, result_of, thread

log = logging.getLogger(__name__)

LOOP = job("trainer.loop", OnFailure.REPORT, "thread")
CLOSE = job("trainer.close_iterator", OnFailure.REPORT)

T = TypeVar("T")

_STOP_LIMIT = 5.0
_END = object()


class LoopThread:
    """One event loop, from start() to stop()."""

    def __init__(self, name: str) -> None:
        self._supervisor = Supervisor(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: StartedThread | None = None
        self._guard: ForkGuard | None = None
        self._failure: TrainerFailed | None = None
        """The error that has ended the thread."""
        self._submitting = threading.Lock()
        """Held while work is submitted, so that no work goes to a stopped loop."""

    @property
    def running(self) -> bool:
        """Whether the thread was started and not stopped. False in a forked child, which has no such thread."""
        return self._loop is not None and self._guard is not None and not self._guard.forked

    def start(self) -> None:
        """Start the thread, and wait until its loop runs. Raises RuntimeError if it runs already, and TrainerFailed."""
        if self._loop is not None:
            raise RuntimeError("the trainer is open already")
        self._guard = ForkGuard("this SyncTrainer")
        started = threading.Event()
        self._failure = None

        def failed(error: BaseException) -> None:
            self._failure = TrainerFailed(LOOP.name, error)
            started.set()

        self._thread = thread(LOOP, lambda: self._run(started), failed)
        started.wait()
        if self._failure is not None:
            raise self._failure

    def call(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Call `work` on the loop, await its result there, and return the value.

        A KeyboardInterrupt in the calling thread cancels the work. Raises the error of the work, Unavailable after
        stop(), and TimeoutError after `timeout` seconds.
        """
        if self._guard is not None:
            self._guard.check()
        if self._is_own_thread():
            raise RuntimeError("a SyncTrainer is not for async code on its own loop: it would wait for itself")

        async def run() -> T:
            return await work()

        with self._submitting:
            if self._failure is not None:
                raise self._failure
            if self._loop is None:
                raise Unavailable("the trainer is not open: use it inside `with SyncTrainer(...) as trainer:`")
            future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return result_of(future, timeout)
        except concurrent.futures.CancelledError:
            raise self._why_closed() from None
        finally:
            future.cancel()

    def iterate(self, begin: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
        """Yield the values of an async iterator; leaving the loop closes the iterator."""
        values, step = begin(), None

        async def advance() -> Any:
            nonlocal step
            step = asyncio.current_task()
            return await anext(values, _END)

        async def close() -> None:
            if step is not None and not step.done():  # after Ctrl-C, its cancellation may not have arrived yet
                step.cancel()
                await asyncio.wait({step})
            if isinstance(values, AsyncGenerator):
                await values.aclose()

        try:
            while (value := self.call(advance)) is not _END:
                yield value
        finally:
            if self._is_own_thread():  # the garbage collector closes the generator; the supervisor logs an error
                self._supervisor.start(CLOSE, close, lambda _: None)
            elif self.running:
                self.call(close)

    def stop(self) -> None:
        """Cancel everything that still runs on the loop, and end the thread."""
        if self._guard is not None:
            self._guard.close()
        with self._submitting:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self._stop is None:
            return
        loop.call_soon_threadsafe(self._stop.set)
        thread.join(_STOP_LIMIT)
        if thread.is_alive():
            log.warning("the trainer's thread did not end within %g s: something blocks its event loop", _STOP_LIMIT)

    def _why_closed(self) -> Exception:
        return self._failure or Unavailable("the trainer was closed")

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self, started: threading.Event) -> bool:
        with asyncio.Runner() as runner:
            self._loop, self._stop = runner.get_loop(), asyncio.Event()
            self._loop.call_soon(started.set)
            try:
                runner.run(self._stop.wait())
            except BaseException as error:  # running calls are cancelled next, and raise this failure
                self._failure, self._loop = TrainerFailed(LOOP.name, error), None
                raise
        return False
