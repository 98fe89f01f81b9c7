"""Reads JSON bodies of HTTP requests within bounds, and turns errors into responses."""

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from osmosis_grpc.protocol.errors import AlreadyExists, CallError, InvalidArgument, Unauthenticated
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.outcome import clip, describe

_MIB = 1024 * 1024
MAX_PARTS = 1_000_000
"""The most lists and objects in a body. With more, even a small body takes long to read."""

_KEYS = {
    "sampling": "completion_params",
    "pin_sampling": "pin_completion_params",
    "metadata_json": "metadata",
    "label": "metadata",
}
"""The keys of an Init's body that are named differently from the field of RolloutSpec that they fill."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a body."""

    size: int = 64 * _MIB
    """Bytes."""
    seconds: float = 20.0
    """The body must arrive within this many seconds. Each MiB that has arrived adds one second."""


class BodyRefused(CallError):
    """The server refuses a body before it has read all of it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status


async def read_json(request: Request, bounds: Bounds, *, repair: bool = False) -> tuple[Any, int]:
    """Return the value and the size of a request's body. Raises BodyRefused, InvalidArgument.

    See parse_body() for `repair`.
    """
    raw = await read_body(request, bounds)
    return parse_body(raw, repair=repair), len(raw)


async def read_body(request: Request, bounds: Bounds) -> bytes:
    """Return the body of a request with a JSON content type. Raises BodyRefused."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise BodyRefused(415, "the body is not application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyRefused(415, "the body is compressed; send it as it is")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > bounds.size:
        raise BodyRefused(413, f"the body is larger than {bounds.size} bytes")
    return await read_within(request, bounds)


def parse_body(raw: bytes, *, repair: bool = False) -> Any:
    """Return the value of a body. With `repair`, U+FFFD replaces invalid text. Raises InvalidArgument."""
    try:
        text = raw.decode(errors="replace" if repair else "strict")
    except UnicodeDecodeError as error:
        raise InvalidArgument("", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    if text.count("[") + text.count("{") > MAX_PARTS:
        raise InvalidArgument("", f"the body holds more than {MAX_PARTS:,} lists and objects")
    return jsontext.parse(text, "", repair=repair)


async def read_within(request: Request, bounds: Bounds) -> bytes:
    """Return a body that need not be JSON. Raises BodyRefused."""
    parts: list[bytes] = []
    size = 0
    ends = asyncio.get_running_loop().time() + bounds.seconds
    try:
        async with asyncio.timeout_at(ends) as limit:
            async for part in request.stream():
                size += len(part)
                if size > bounds.size:
                    raise BodyRefused(413, f"the body is larger than {bounds.size} bytes")
                parts.append(part)
                limit.reschedule(ends + size / _MIB)
    except ClientDisconnect:
        raise BodyRefused(400, "the connection was cut in the middle of the body") from None
    except TimeoutError:
        raise BodyRefused(408, f"the body did not arrive within {bounds.seconds:g} s") from None
    return b"".join(parts)


async def refusal(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a failed call. A 422 response has field paths in FastAPI's form."""
    assert isinstance(error, CallError)
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if isinstance(error, InvalidArgument):
        rows = [
            {"loc": ["body", *_location(field)], "msg": clip(problem, 1000), "type": "value_error"}
            for field, problem in error.violations[:32]
        ]
        return JSONResponse({"detail": rows}, 422, headers)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"detail": clip(describe(error), 4000)}, error.status_code, headers)


def init_refusal(error: CallError, keys: Mapping[str, str] = _KEYS) -> CallError:
    """Return the refusal of an Init with paths of its body in place of paths of RolloutSpec.

    `keys` has the keys of the body that are named differently.
    """
    if isinstance(error, InvalidArgument):
        first, *more = ((_in_body(path, keys), problem) for path, problem in error.violations)
        return InvalidArgument(*first, more)
    if isinstance(error, AlreadyExists) and error.fields:
        differing = tuple(dict.fromkeys(_in_body(path, keys) for path in error.fields))
        problem = f"rollout {error.rollout_id} was started with another body; it differs in {', '.join(differing)}"
        return AlreadyExists(problem, rollout_id=error.rollout_id, attempt=error.attempt, fields=differing)
    return error


def _in_body(path: str, keys: Mapping[str, str]) -> str:
    """Return spec.sampling.top_p as completion_params.top_p. Return a path outside of RolloutSpec as it is."""
    inner = path.removeprefix("spec.")
    if inner == path:
        return path
    field = re.split(r"[.\[]", inner, maxsplit=1)[0]
    return keys.get(field, field) + inner[len(field) :]


async def internal(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an unexpected exception. Only the log has the text of the exception."""
    return JSONResponse({"detail": "internal error; the server's log has the exception"}, 500)


def _location(field: str) -> list[str | int]:
    """Return messages[3].role as ["messages", 3, "role"]."""
    parts = field.replace("[", ".").replace("]", "").split(".")
    return [int(part) if part.isascii() and part.isdecimal() else clip(part, 200) for part in parts if part]
