"""Waits for conditions. `scripts/lint.py` forbids a sleep in its place."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Callable
from contextlib import aclosing
from typing import Any

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import RolloutOutcome, events
from osmosis_grpc.trainer import RolloutClient

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


async def ended(client: RolloutClient, rollout_id: str, attempt: int = 0) -> RolloutOutcome:
    """Follow a rollout's events to its end and return its outcome as its server has it. Raise NotFound."""
    while True:
        async with aclosing(client.events(rollout_id, attempt=attempt)) as trail:
            async for event in trail:
                if isinstance(event.kind, events.Ended):
                    break
        try:
            outcome = (await client.get(rollout_id, attempt)).outcome
        except Unavailable:  # events() waits until the server can be reached again
            continue
        if outcome is not None:
            return outcome


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
