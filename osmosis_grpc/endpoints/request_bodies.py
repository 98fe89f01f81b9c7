"""Parses requests of programs, within limits. Long ones are parsed on a thread, so that the event loop stays free."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from starlette.requests import ClientDisconnect

from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.endpoints.model_request import Asked, ModelRequest
from osmosis_grpc.endpoints.stored_replies import StoredReplies
from osmosis_grpc.network.http.bounded_json import BodyRefused, Bounds, parse_body, read_body
from osmosis_grpc.protocol.errors import InvalidArgument

BOUNDS = Bounds(size=32 * 1024 * 1024)
MAX_ITEMS = 50_000
"""The most JSON values in a body. It is limited because the event loop copies each of them."""
MAX_MARKS = 500_000
"""The most commas and opening brackets in a body, including its strings. This cheaply limits the time to parse it."""
THREAD_BYTES = 64 * 1024
"""A body with more bytes is parsed on a thread."""
DISCARD_SECONDS = 5.0
"""For how many seconds the rest of a body that is too large is read and discarded."""
SAMPLE_HEADERS = ("x-osmosis-sample", "x-sample-id")
"""The headers that may name the sample of a request, percent-encoded. By default, the history determines it."""
RETRY_HEADER = "x-stainless-retry-count"
"""The header in which clients of OpenAI and Anthropic count their tries, from 0."""
_LEAST_BYTES = 64 * 1024
_NESTED = (dict, list)


def reserved_bytes(request: Request) -> int:
    """Return how many bytes of the budget a request takes: its declared size, but at least 64 KiB."""
    declared = request.headers.get("content-length", "")
    size = int(declared[:20]) if declared.isdecimal() else BOUNDS.size
    return max(_LEAST_BYTES, min(size, BOUNDS.size))


async def read_asked(
    request: Request, read: Callable[[Any], ModelRequest], reading: asyncio.Semaphore, replies: StoredReplies
) -> Asked:
    """Read and parse the body of a request. Raises BodyRefused, InvalidArgument.

    `reading` limits how many long bodies are parsed at once. `replies` are those that a request can continue.
    """
    try:
        raw = await read_body(request, BOUNDS)
    except BodyRefused as error:
        if error.status_code == 413:
            await _discard(request)
        raise
    sample = unquote(next(filter(None, map(request.headers.get, SAMPLE_HEADERS)), "") or "")
    path, retried = request.scope["path"], request.headers.get(RETRY_HEADER, "0") != "0"
    if len(raw) > THREAD_BYTES:
        async with reading:
            return await asyncio.to_thread(_asked, raw, read, sample, path, retried, replies)
    return _asked(raw, read, sample, path, retried, replies)


async def _discard(request: Request) -> None:
    """Read the rest of a body for some seconds. Clients read the response only after they have sent the whole body."""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for _ in request.stream():
                pass


def _asked(
    raw: bytes, read: Callable[[Any], ModelRequest], sample: str, path: str, retried: bool, replies: StoredReplies
) -> Asked:
    if sum(raw.count(mark) for mark in b",[{") > MAX_MARKS:
        raise InvalidArgument("", f"the body has more than {MAX_MARKS:,} commas, lists and objects")
    digest = blake2b(f"{path}\0{sample}\0".encode() + raw).digest()
    body = parse_body(raw, repair=True)
    if len(raw) > MAX_ITEMS:
        _check_items(body)
    request = read(body)
    messages = request.messages
    if request.continues:
        messages = replies.continued(request.continues, messages)
    history = History.of(messages)
    return Asked(request=request, history=history, sample=sample, digest=digest, retried=retried)


def _check_items(body: Any) -> None:
    count, nested = 0, [body]
    while nested:
        value = nested.pop()
        count += len(value)
        if count > MAX_ITEMS:
            raise InvalidArgument("", f"the body has more than {MAX_ITEMS:,} values")
        nested += [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, _NESTED)]
