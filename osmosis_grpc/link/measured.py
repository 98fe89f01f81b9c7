"""Measures calls as gRFC A66 says: how many begin, how they end, how long they take, how many bytes they carry.

A call is known in the context of its task and of the tasks that it starts, so the functions that read and write its
messages find it. Where nobody asked for measurements nothing here runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import grpc

T = TypeVar("T")


class CallSink(Protocol):
    """Something that counts calls. A status is the name of a gRPC code, sizes are in bytes."""

    def started(self, method: str) -> None:
        """A call began."""

    def ended(self, method: str, status: str, seconds: float, sent: int, received: int) -> None:
        """A call ended."""


class Call:
    """One call, from its start to end()."""

    __slots__ = ("_began", "_method", "_sink", "context", "received", "sent")

    def __init__(self, sink: CallSink, path: str) -> None:
        self._sink: CallSink | None = sink
        self._method = path.lstrip("/")
        self._began = time.monotonic()
        self.sent = self.received = 0
        self.context: Any = None
        """The servicer context of an answered call, once its handler has begun."""
        sink.started(self._method)

    def end(self, status: str) -> None:
        """The call is over; only the first time counts."""
        sink, self._sink, self.context = self._sink, None, None
        if sink is not None:
            sink.ended(self._method, status, time.monotonic() - self._began, self.sent, self.received)


_current: ContextVar[Call | None] = ContextVar("osmosis_grpc_call", default=None)


def counting_sent(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """A serializer that adds the bytes that it makes to the current call."""

    def write(message: Any) -> bytes:
        data: bytes = message if serialize is None else serialize(message)
        call = _current.get()
        if call is not None:
            call.sent += len(data)
        return data

    return write


def counting_received(deserialize: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """A deserializer that adds the bytes that it reads to the current call."""

    def read(data: bytes) -> T:
        call = _current.get()
        if call is not None:
            call.received += len(data)
        return deserialize(data)

    return read


def answering(sink: CallSink, path: str, unanswered: str = "CANCELLED") -> None:
    """A server's call has begun, and this is its task: measure it until the task ends.

    `unanswered` is the status of a call that ends before its handler begins.
    """
    call = Call(sink, path)
    _current.set(call)
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda done: call.end(_status(done, call.context, unanswered)))


def begun(context: Any) -> None:
    """The handler of the current call has begun."""
    call = _current.get()
    if call is not None:
        call.context = context


def _status(task: "asyncio.Task[Any]", context: Any, unanswered: str) -> str:
    if context is None:
        return unanswered
    if task.cancelling():  # grpc.aio catches the CancelledError itself
        return "CANCELLED"
    code = context.code()
    return "OK" if code is None else str(code.name)


def calling(sink: CallSink | None, path: str, make: Callable[[], T]) -> tuple[T, Call | None]:
    """Make a client's call and measure it; the caller ends the measurement. Without a sink it is not measured."""
    if sink is None:
        return make(), None
    call = Call(sink, path)
    token = _current.set(call)
    try:
        return make(), call
    finally:
        _current.reset(token)


async def answered(reply: Awaitable[T], call: Call | None) -> T:
    """Await the reply of a unary call and end its measurement."""
    if call is None:
        return await reply
    try:
        result = await reply
    except grpc.aio.AioRpcError as error:
        call.end(error.code().name)
        raise
    except asyncio.CancelledError:
        call.end("CANCELLED")
        raise
    call.end("OK")
    return result


class Unregistered(grpc.GenericRpcHandler):
    """The last handler of a server: counts calls of methods that no other one has, as "other"."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink

    def service(self, details: grpc.HandlerCallDetails) -> None:
        """Leaves the call UNIMPLEMENTED."""
        answering(self._sink, "other", unanswered="UNIMPLEMENTED")
