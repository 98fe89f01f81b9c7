"""Awaits an async get_tools, with a time limit."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from osmosis_grpc.supervise import OnFailure, child, job

GET_TOOLS = job("agent.get_tools", OnFailure.RAISE)


async def await_tools(tools: Awaitable[Any], seconds: float) -> Any:
    """Return the result of an async get_tools.

    It is the agent's code, so it runs in a task of its own. Raises its exception, TimeoutError after so many seconds,
    and RuntimeError if it cancels itself.
    """
    task = child(GET_TOOLS, _settled(tools))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError(f"it took longer than {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def _settled(tools: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return the result or the exception. A SystemExit that left the task would end the event loop."""
    try:
        return await tools, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
