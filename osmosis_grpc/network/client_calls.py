"""The calls of clients and servers: their metrics, and the exceptions of failed calls.

A failed call's status becomes an exception: each code has its own class. The number, status, duration and bytes of
calls are measured as gRFC A66 defines them. The client and the server each make a Call, add the bytes of its messages,
and end it with a status. Without a CallSink a Call counts nothing.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.wire.methods import Method
from osmosis_grpc.protocol.wire.status import from_code

T = TypeVar("T")


class CallSink(Protocol):
    """Counts calls. A status is the name of a gRPC code. Sizes are in bytes."""

    def started(self, method: str) -> None:
        """Count a call that began."""

    def ended(self, method: str, status: str, seconds: float, sent: int, received: int) -> None:
        """Count a call that ended."""


class Call:
    """One call, from its start to end(). `method` is SERVICE/METHOD."""

    __slots__ = ("_began", "_method", "_sink", "received", "sent")

    def __init__(self, sink: CallSink | None, method: str) -> None:
        self._sink = sink
        self.sent = self.received = 0
        if sink is not None:
            self._method = method
            self._began = time.monotonic()
            sink.started(method)

    def end(self, status: str) -> None:
        """Count the end of the call, once."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.ended(self._method, status, time.monotonic() - self._began, self.sent, self.received)


class Asking(Call):
    """A client's unary call that sends and receives bytes. It starts at once. Await it to get its reply."""

    __slots__ = ("_call",)

    def __init__(self, sink: CallSink | None, path: str, make: Callable[..., Any], data: bytes, **options: Any) -> None:
        super().__init__(sink, path.lstrip("/"))
        self.sent = len(data)
        self._call = make(data, **options)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._answer().__await__()

    def cancel(self) -> None:
        """Cancel the call: awaiting it raises CancelledError."""
        self._call.cancel()

    async def _answer(self) -> bytes:
        try:
            data: bytes = await cancellable(self._call)
        except grpc.aio.AioRpcError as error:
            self.end(error.code().name)
            raise
        except asyncio.CancelledError:
            self.end("CANCELLED")
            raise
        self.received = len(data)
        self.end("OK")
        return data


async def cancellable(awaitable: Awaitable[T]) -> T:
    """Await a client's call, or its next message. Raises CancelledError if the current task is cancelled meanwhile.

    Without this, a cancel that comes together with the end of the call can be lost: gRPC awaits a task of its own,
    which ends without CancelledError when it is cancelled.
    """
    task, error = asyncio.current_task(), None
    before = task.cancelling() if task is not None else 0
    try:
        result = await awaitable
    except grpc.aio.AioRpcError as failed:
        error = failed
    if task is not None and task.cancelling() > before:
        await asyncio.sleep(0)  # a cancel scope of anyio cancels again, with its own message
        raise asyncio.CancelledError
    if error is not None:
        raise error
    return result


DETAILS_KEY = "grpc-status-details-bin"

Metadata = Sequence[tuple[str, str]]


async def call(method: Any, request: Any, *, timeout: float | None, metadata: Metadata = (), hide: str = "") -> Any:
    """Await a unary call and return the reply. Cancelling this coroutine cancels the call.

    Raises a CallError when the call fails. The error's text does not contain the secret `hide`.
    """
    try:
        return await cancellable(method(request, timeout=timeout, metadata=metadata or None))
    except grpc.aio.AioRpcError as error:
        raise error_of(error, hide=hide) from None


def error_of(error: grpc.aio.AioRpcError, *, hide: str = "") -> CallError:
    """Return the exception of a failed call. Its text does not contain the secret `hide`."""
    # If grpc.aio sends a message while the call ends, this error replaces the status that the other side sent. That
    # status is lost, but the next call gets it again.
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core":
        return Unavailable("the call was cut off while a message was sent: the other side restarts, or has left")
    code = error.code().value[0]
    if hide and hide in str(error.details()) + repr(
        error.trailing_metadata()
    ):  # the other side may echo the credential
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
            while (response := await cancellable(call.read())) is not grpc.aio.EOF:
                yield response
        else:
            yield await cancellable(call)
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        call.cancel()
