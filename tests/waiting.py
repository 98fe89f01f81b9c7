"""Waits for conditions. `scripts/lint_tests.py` forbids a sleep in its place."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Callable
from typing import Any

PATIENCE = 20.0
"""Seconds after which `until` gives up: more than anything takes on a busy machine."""
INTERVAL = 0.002
"""Seconds between two looks at a condition."""


async def until(condition: Callable[[], Any], what: str = "", *, timeout: float = PATIENCE) -> Any:
    """Return the first true result of `condition`, which may be async. Raise AssertionError after `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                result = condition()
                if inspect.isawaitable(result):
                    result = await result
                if result:
                    return result
                await asyncio.sleep(INTERVAL)  # between two looks
    except TimeoutError:
        raise AssertionError(f"not true within {timeout:g} s: {what or _name(condition)}") from None


def wait_until(condition: Callable[[], Any], what: str = "", *, timeout: float = PATIENCE) -> Any:
    """Block until `condition` returns something true, as `until` does without an event loop."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout:g} s: {what or _name(condition)}")
        time.sleep(INTERVAL)  # between two looks
    return result


async def is_empty(items: AsyncIterable[Any]) -> bool:
    """Return whether nothing comes."""
    async for _ in items:
        return False
    return True


async def turns(count: int = 10) -> None:
    """Give every ready task so many turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def _name(condition: Callable[[], Any]) -> str:
    return getattr(condition, "__qualname__", repr(condition))
