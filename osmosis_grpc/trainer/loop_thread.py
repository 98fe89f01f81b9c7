"""An event loop in its own thread, for callers that are not async.

LoopThread runs awaitables and async iterators for other threads. It does not depend on Trainer.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

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
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._supervisor = Supervisor(name)
        self._thread: StartedThread | None = None
        self._guard: ForkGuard | None = None
        self._failure: TrainerFailed | None = None
        """The error that has ended the thread."""
        self._submitting = threading.Lock()
        """Held while work is submitted to the loop, so that no work is submitted to a stopped loop."""
        self._iterations: set[_Iteration[Any]] = set()

    @property
    def running(self) -> bool:
        """Whether the thread was started and not stopped. False in a forked child, which has no such thread."""
        return self._loop is not None and self._guard is not None and not self._guard.forked

    def start(self) -> None:
        """Start the thread, and wait until its loop runs. Raises RuntimeError when it runs already, TrainerFailed."""
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
        if self.is_own_thread():
            raise RuntimeError("a SyncTrainer is not for async code on its own loop: it would wait for itself")

        async def run() -> T:
            return await work()

        def begin(loop: asyncio.AbstractEventLoop) -> None:
            # The coroutine is made on the loop, so that no KeyboardInterrupt comes before the loop awaits it.
            running = asyncio.run_coroutine_threadsafe(run(), loop)
            future.add_done_callback(lambda _: running.cancel())
            running.add_done_callback(report)

        def report(done: "concurrent.futures.Future[T]") -> None:
            if done.cancelled():
                future.cancel()
            elif future.set_running_or_notify_cancel():
                error = done.exception()
                if error is None:
                    future.set_result(done.result())
                else:
                    future.set_exception(error)

        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._submitting:
            if self._failure is not None:
                raise self._failure
            if self._loop is None:
                raise Unavailable("the trainer is not open: use it inside `with SyncTrainer(...) as trainer:`")
            self._loop.call_soon_threadsafe(begin, self._loop)
        try:
            return result_of(future, timeout)
        except concurrent.futures.CancelledError:
            raise self._why_closed() from None
        finally:
            future.cancel()

    def iterate(self, begin: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
        """Yield the values of an async iterator; leaving the loop closes the iterator."""
        iteration = _Iteration(begin)
        self._iterations.add(iteration)
        try:
            while True:
                value = self.call(iteration.next)
                if value is _END:
                    return
                yield value
        finally:
            self._leave(iteration)

    def stop(self) -> None:
        """Cancel what still runs on the loop, and end the thread."""
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

    async def close_iterations(self) -> None:
        """Close every iterator that is still open. Runs on the loop."""
        for iteration in list(self._iterations):
            await iteration.close()

    def is_own_thread(self) -> bool:
        """Returns whether the caller runs on the loop's thread."""
        return threading.current_thread() is self._thread

    def _why_closed(self) -> Exception:
        return self._failure or Unavailable("the trainer was closed")

    def _leave(self, iteration: "_Iteration[T]") -> None:
        self._iterations.discard(iteration)
        if not self.running:
            return
        if self.is_own_thread():  # the garbage collector closed the generator on this thread
            # The supervisor logs an error; no caller waits for it.
            iteration.closing = self._supervisor.start(CLOSE, iteration.close, lambda _: None)
        else:
            self.call(iteration.close)

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


class _Iteration(Generic[T]):
    """One async iterator. The first next() begins it. The methods run on the loop."""

    def __init__(self, begin: Callable[[], AsyncIterator[T]]) -> None:
        self.closing: asyncio.Task[None] | None = None
        self._begin = begin
        self._values: AsyncIterator[T] | None = None
        self._step: asyncio.Task[Any] | None = None

    async def next(self) -> Any:
        """Returns the next value, or _END."""
        if self._values is None:
            self._values = self._begin()
        self._step = asyncio.current_task()
        try:
            return await anext(self._values, _END)
        finally:
            self._step = None

    async def close(self) -> None:
        """Cancel a running next(), and then close the iterator. Idempotent."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait({self._step})
        if isinstance(self._values, AsyncGenerator):
            await self._values.aclose()
