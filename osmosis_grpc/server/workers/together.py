"""Awaits calls to several workers at once."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from osmosis_grpc.protocol.errors import CallError


async def results(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await calls at once, and return their results or CallErrors. Raises any other error."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, CallError):
            raise each
    return found


def raise_first(answers: Mapping[int, Any]) -> None:
    """Raise the first error among answers."""
    for each in answers.values():
        if isinstance(each, CallError):
            raise each
