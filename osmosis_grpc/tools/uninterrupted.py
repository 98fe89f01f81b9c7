"""Awaits work that must be completed even if the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from osmosis_grpc.supervise import OnFailure, child, job

CLEAN_UP = job("tools.clean_up", OnFailure.RAISE)

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. A cancellation of the caller takes effect after the work has ended.

    Use it only for work that ends soon. Raises the exception of the work.
    """
    task = child(CLEAN_UP, work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
