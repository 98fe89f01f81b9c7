"""The context of agents with a sync run(), which runs on a thread. Its methods block until they have a result."""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop_calls import LoopCalls
from osmosis_grpc.protocol.types import RolloutRequest, ToolDict
from osmosis_grpc.supervise import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")


def _called(method: Callable[Concatenate[RolloutContext, P], T]) -> Callable[Concatenate["SyncRolloutContext", P], T]:
    """Return a method of SyncRolloutContext that calls a method of RolloutContext on the event loop."""

    @functools.wraps(method)
    def call(self: "SyncRolloutContext", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(lambda: method(self._context, *args, **kwargs))

    return call


def _awaited(
    method: Callable[Concatenate[RolloutContext, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncRolloutContext", P], T]:
    """Return a method of SyncRolloutContext that waits for the result of an async method of RolloutContext."""

    @functools.wraps(method)
    def wait(self: "SyncRolloutContext", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(lambda: method(self._context, *args, **kwargs))

    del wait.__wrapped__  # inspect would follow it to the async method, but `wait` is sync
    return wait


class SyncRolloutContext:
    """The RolloutContext for sync code on threads. Several threads may call its methods at once.

    After the end of the rollout, every method raises RolloutEndedError.
    """

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._calls = LoopCalls(asyncio.get_running_loop())

    @property
    def request(self) -> RolloutRequest:
        """The trainer's request."""
        return self._context.request

    @property
    def tools(self) -> list[ToolDict]:
        """The tools that get_tools returned, as dicts."""
        return self._context.tools

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of the samples that have begun."""
        return self._call(lambda: self._context.samples)

    chat = _awaited(RolloutContext.chat)  # type: ignore[arg-type] # `self` could be the name of a sampling parameter
    run_tools = _awaited(RolloutContext.run_tools)
    tool_loop = _awaited(RolloutContext.tool_loop)  # type: ignore[arg-type]
    add_sample = _called(RolloutContext.add_sample)
    set_reward = _called(RolloutContext.set_reward)
    complete = _called(RolloutContext.complete)
    error = _called(RolloutContext.error)
    record_tool_call = _called(RolloutContext.record_tool_call)
    log_event = _called(RolloutContext.log_event)

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call an async function on the server's event loop, and wait for its result.

        Raises TypeError if `work` returns no coroutine.
        """
        self._check_thread()
        return self._calls.wait(work)

    def close(self) -> None:
        """End all current and later calls with RolloutEndedError. Called on the event loop when run() has ended."""
        self._calls.close()

    def _call(self, function: Callable[[], T]) -> T:
        self._check_thread()
        return self._calls.call(function)

    def _check_thread(self) -> None:
        if self._calls.here:
            raise RuntimeError("a sync agent's ctx was used on the event loop; in async code use `async def run`")


THREADS = 512
"""At most this many sync agents run at once in a process. Others wait for a thread."""

_threads = DaemonThreads(THREADS, replaced=THREADS, name="sync agents")


class RunNotAsyncError(TypeError):
    """A run() that is not `async def` returned a coroutine."""


def is_async(run: Callable[..., Any]) -> bool:
    """Return whether a callable, the function that it wraps, or its `__call__` is async."""
    return any(map(inspect.iscoroutinefunction, (run, inspect.unwrap(run), getattr(run, "__call__", None))))  # noqa: B004


async def run_on_thread(run: Callable[[SyncRolloutContext], Any], context: RolloutContext) -> Any:
    """Call run() on a thread. Return its result, or raise its exception.

    If the rollout ends first, the thread's current or next call of a context method raises RolloutEndedError. Code that
    calls no such method keeps its thread until it returns.
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
