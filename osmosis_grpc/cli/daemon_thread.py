"""Runs agents in daemon threads, so that a command can end even if an agent hangs."""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from osmosis_grpc.supervise import OnFailure, job, result_of, thread

DAEMON_THREAD = job("cli.run_in_daemon_thread", OnFailure.REPORT, "thread")
EXIT_AFTER = job("cli.exit_after", OnFailure.REPORT, "thread")

STOPPING = 5.0
"""After Ctrl-C, commands wait at most this many seconds for running agents to end and for the journal to close."""

T = TypeVar("T")


def run_in_daemon_thread(main: Callable[[], Awaitable[T]], limit: float | None = None, *, stopping: float = 0.0) -> T:
    """Run a coroutine in a daemon thread, and return its result. If it hangs, it does not keep the process alive.

    Args:
        main: Makes the coroutine.
        limit: The time limit, in seconds. None means no limit.
        stopping: The seconds that the coroutine gets to end after Ctrl-C, which cancels it. 0 does not cancel it.

    Raises:
        concurrent.futures.TimeoutError: The coroutine takes longer than `limit`.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    cancel: list[Callable[[], object]] = []

    async def announced() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            future.set_result(await main())
        except BaseException as error:
            future.set_exception(error)

    def step() -> bool:
        asyncio.run(announced())
        return False

    def failed(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    running = thread(DAEMON_THREAD, step, failed)
    try:
        result = result_of(future, limit)
    except KeyboardInterrupt:
        with contextlib.suppress(Exception, asyncio.CancelledError, KeyboardInterrupt):
            if stopping:
                cancel[0]()
                future.result(stopping)
        raise
    running.join(1.0)
    return result


@contextlib.contextmanager
def exit_after(seconds: float, message: str) -> Iterator[None]:
    """Exit with code 2 and a message if the block takes longer than `seconds`, even if C code is running."""
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
