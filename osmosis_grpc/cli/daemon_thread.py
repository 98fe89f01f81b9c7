"""Daemon threads of commands: they run agents, and end a command that nothing else can end."""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from osmosis_grpc.supervise import OnFailure, job, result_of, thread

DAEMON_THREAD = job("cli.run_in_daemon_thread", OnFailure.REPORT, "thread")
EXIT_AFTER = job("cli.exit_after", OnFailure.REPORT, "thread")

T = TypeVar("T")


class Interruptible(Generic[T]):
    """Runs a coroutine in a daemon thread, which an agent cannot keep alive, and can stop it before its end."""

    def __init__(self, main: Callable[[], Awaitable[T]]) -> None:
        self._main = main
        self._future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._cancel: Callable[[], object] = lambda: None

    def run(self, limit: float | None = None) -> T:
        """Return the result of the coroutine, or raise its exception.

        Raises concurrent.futures.TimeoutError if it takes longer than `limit` seconds.
        """
        running = thread(DAEMON_THREAD, self._run, self._failed)
        result = result_of(self._future, limit)
        running.join(1.0)
        return result

    def stop(self, limit: float) -> None:
        """Cancel the coroutine after an interrupt of run(), and wait at most `limit` seconds for its end."""
        self._cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError, KeyboardInterrupt):
            self._future.result(limit)

    def _run(self) -> bool:
        asyncio.run(self._announce())
        return False

    async def _announce(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            self._future.set_result(await self._main())
        except BaseException as error:
            self._future.set_exception(error)

    def _failed(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


def run_in_daemon_thread(main: Callable[[], Awaitable[T]], limit: float | None = None) -> T:
    """Run a coroutine in a daemon thread. See Interruptible.run."""
    return Interruptible(main).run(limit)


@contextlib.contextmanager
def exit_after(seconds: float, message: str) -> Iterator[None]:
    """End the process with a message and exit code 2 if the block takes longer, even in a call of C code."""
    over = threading.Event()

    def wait() -> bool:
        if not over.wait(seconds):
            print(message, file=sys.stderr, flush=True)
            os._exit(2)
        return False

    thread(EXIT_AFTER, wait)
    try:
        yield
    finally:
        over.set()
