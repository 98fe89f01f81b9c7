"""The client's side of a call. It converts a failed call's status to an exception: each code has its own class."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.wire.methods import Method
from osmosis_grpc.protocol.wire.status import from_code

DETAILS_KEY = "grpc-status-details-bin"

Metadata = Sequence[tuple[str, str]]


async def call(method: Any, request: Any, *, timeout: float | None, metadata: Metadata = (), hide: str = "") -> Any:
    """Awaits a unary call and returns the reply. Cancelling this coroutine cancels the call.

    Raises a CallError when the call fails. The error's text does not contain the secret `hide`.
    """
    try:
        return await method(request, timeout=timeout, metadata=metadata or None)
    except grpc.aio.AioRpcError as error:
        raise error_of(error, hide=hide) from None


def error_of(error: grpc.aio.AioRpcError, *, hide: str = "") -> CallError:
    """Return the exception of a failed call. Its text does not contain the secret `hide`."""
    code = error.code().value[0]
    if hide and hide in str(error.details()) + repr(
        error.trailing_metadata()
    ):  # the other side echoes what it was shown
        return from_code(code, (error.details() or "").replace(hide, "[credential]"))
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                break
            if status.code == code:
                return from_code(code, status.message, status.details)
    return from_code(code, error.details() or error.code().name)


async def replies(
    channel: grpc.aio.Channel, method: Method, request: Message, *, timeout: float | None, metadata: Metadata = ()
) -> AsyncGenerator[Message, None]:
    """Yield the responses to one request: one, or those of a stream. Raises CallError."""
    kind = channel.unary_stream if method.streams_responses else channel.unary_unary
    call: Any = kind(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )(request, timeout=timeout, metadata=tuple(metadata) or None)
    try:
        if method.streams_responses:
            async for response in call:
                yield response
        else:
            yield await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        call.cancel()
