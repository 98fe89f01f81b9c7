"""Lets a sync function wait for the event loop without blocking it, although an async function has called it.

For example, an async run() calls a library whose sync function calls the model. This function would block the event
loop, which then never receives the reply. With greenlet (the extra `strands` or `litellm` installs it), the sync
function is suspended, and its task waits as at an `await`.
"""

import contextvars
import importlib
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_MARK = "osmosis_task"
"""An attribute of the greenlets in which tasks run."""


async def with_sync_waits(work: Awaitable[T]) -> T:
    """Run a coroutine whose task may call wait_in_task(). Without greenlet, only await it.

    Tasks that the coroutine starts may not call wait_in_task().
    """
    greenlet = _greenlet()
    if greenlet is None or not inspect.iscoroutine(work):
        return await work
    result: T = await _stepped(greenlet, work)
    return result


def may_wait() -> bool:
    """Return whether the current task runs in with_sync_waits(), with greenlet."""
    greenlet = _greenlet()
    return greenlet is not None and hasattr(greenlet.getcurrent(), _MARK)


def wait_in_task(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the current task, and return its result. Called by a sync function on the event loop.

    Raises RuntimeError if the task does not run in with_sync_waits().
    """
    greenlet = _greenlet()
    if not may_wait():
        work.close()
        why = "" if greenlet is not None else "greenlet is not installed, and "
        raise RuntimeError(
            f"a sync call would block the event loop here: {why}only the task of a workflow's run() may make one. "
            "Use the async form of the call, for example `await agent.invoke_async()`"
        )
    return _driven(greenlet, work)


def _greenlet() -> Any:
    return sys.modules["greenlet"] if "greenlet" in sys.modules else _imported()


@cache
def _imported() -> Any:
    """Import greenlet. It is searched once, because the search of a missing module takes long."""
    try:
        return importlib.import_module("greenlet")
    except ImportError:
        return None


@types.coroutine
def _stepped(greenlet: Any, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine in a greenlet, and yield each future that it waits for to the task."""
    inner = greenlet.greenlet(lambda: _driven(greenlet, work))
    setattr(inner, _MARK, True)
    inner.gr_context = contextvars.copy_context()
    waited_for = inner.switch()
    while not inner.dead:
        try:
            sent = yield waited_for
        except BaseException as error:
            inner.parent = greenlet.getcurrent()
            waited_for = inner.throw(error)
        else:
            inner.parent = greenlet.getcurrent()
            waited_for = inner.switch(sent)
    result: T = waited_for
    return result


def _driven(greenlet: Any, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Each future that it waits for is given to the task, which is the parent greenlet."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            waited_for = resume(value)
        except StopIteration as ended:
            result: T = ended.value
            return result
        try:
            value, resume = greenlet.getcurrent().parent.switch(waited_for), work.send
        except BaseException as error:
            value, resume = error, work.throw
