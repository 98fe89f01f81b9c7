"""Runs agents whose run() is not async, each on a thread of its own."""

import contextvars
import inspect
from collections.abc import Callable
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.sync_context import SyncRolloutContext
from osmosis_grpc.supervise import DaemonThreads

THREADS = 512
"""At most this many sync agents run at once in a process. Further ones wait for a thread."""

_threads = DaemonThreads(THREADS, replaced=THREADS, name="sync agents")


class RunNotAsyncError(TypeError):
    """A plain function run() returned a coroutine."""


def is_async(run: Callable[..., Any]) -> bool:
    """Return whether a function, or the function that it wraps, is async."""
    return any(map(inspect.iscoroutinefunction, (run, inspect.unwrap(run), getattr(run, "__call__", None))))  # noqa: B004


async def run_on_thread(run: Callable[[SyncRolloutContext], Any], context: RolloutContext) -> Any:
    """Call run() on a thread, and return its result. Raises its exception.

    If the rollout ends before that, the next call of the context's methods raises RolloutEndedError in the thread, and
    so does a call that waits. Code that calls none of them keeps its thread until it returns.
    """
    sync_context = SyncRolloutContext(context)
    variables = contextvars.copy_context()
    try:
        result = await _threads.run(lambda: variables.run(run, sync_context))
        if inspect.iscoroutine(result):
            result.close()
            raise RunNotAsyncError("run is a plain function, and returned a coroutine: write `async def run`")
        return result
    finally:
        sync_context.close()
