"""Runs agents in a daemon thread, so that no agent can keep the command from ending."""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import TypeVar

from osmosis_grpc.supervise import OnFailure, job, thread

DAEMON_THREAD = job("cli.run_in_daemon_thread", OnFailure.REPORT, "thread")

T = TypeVar("T")


def run_in_daemon_thread(main: Callable[[], Awaitable[T]], limit: float | None = None) -> T:
    """Run a coroutine in a daemon thread, so that an agent cannot keep this process alive.

    Raises the exception of the coroutine. Raises concurrent.futures.TimeoutError if it takes longer than `limit`
    seconds.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def announce() -> None:
        try:
            future.set_result(await main())
        except BaseException as error:
            future.set_exception(error)

    def run() -> bool:
        asyncio.run(announce())
        return False

    def failed(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    running = thread(DAEMON_THREAD, run, failed)
    result = future.result(limit)
    running.join(1.0)
    return result
