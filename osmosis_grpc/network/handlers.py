"""The server's side of every call. It refuses undecodable bytes, answers exceptions with statuses, adds request ids."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

import grpc

from osmosis_grpc.network.client_calls import DETAILS_KEY, Call, CallSink
from osmosis_grpc.protocol.errors import CallError, Internal, ResourceExhausted
from osmosis_grpc.protocol.stream.undecodable import decode_or_mark, decoded
from osmosis_grpc.protocol.wire.status import to_status
from osmosis_grpc.supervise import SYSTEM, OnFailure, child, job

log = logging.getLogger(__name__)

READ = job("link.read_request_of_stranger", OnFailure.RAISE)
MOST = 2
"""The most slow requests that are read at once, each of at most MAX_MESSAGE_BYTES."""
PATIENCE = 0.005
"""Seconds after which a request is slow. A health check is a single packet, which arrives before its call does."""


class Strangers:
    """Reads requests of callers without credentials. If more than MOST of them are slow, the oldest are refused.

    The size of a request is unknown before gRPC has read it, and in a queue, slow requests would delay all others. So
    each request is read at once, and newer ones replace slow ones.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, None] = {}

    async def read(self, context: Any) -> Any:
        """Return the next message of a call. Raises ResourceExhausted."""
        place = object()
        self._waiting[place] = None
        reading = child(READ, context.read())
        try:
            while not (await asyncio.wait((reading,), timeout=PATIENCE))[0]:
                newer = len(self._waiting) - 1 - [*self._waiting].index(place)
                if newer >= MOST:
                    raise ResourceExhausted("too many callers without a credential send large or slow requests")
            return reading.result()
        finally:
            del self._waiting[place]
            reading.add_done_callback(_seen)  # it ends with the call; cancelling it would cost the call its status


def _seen(reading: "asyncio.Task[Any]") -> None:
    if not reading.cancelled():
        reading.exception()


REQUEST_ID_KEY = "x-request-id"
"""The metadata key of a request id: the caller's id, or a new id. The trailers and the log line of an error have it."""

_HEALTH = "/grpc.health.v1.Health/"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


_Guard = Callable[[Any], object]
"""Checks the context of a call. Raises a CallError to refuse the call."""


class Registrar(grpc.GenericRpcHandler):
    """Wraps each handler of a server. Pass it to the generated add_..._to_server functions instead of the server.

    Each handler is wrapped once, at its first call. An interceptor would cost every call about 40 us. `guard` is called
    with the context of the call before its request is read. Health checks are the exception: they need no
    credential, and Strangers limits the memory that they take. `calls` counts the calls. It counts the calls of unknown
    methods under the name "other". `new_id` makes the ids of failed calls.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        guard: _Guard | None = None,
        calls: CallSink | None = None,
        *,
        new_id: Callable[[], str] = SYSTEM.new_id,
    ) -> None:
        self._new_id = new_id
        self._guard = guard
        self._calls = calls
        self._strangers = Strangers()
        self._services: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, Any] = {}
        server.add_generic_rpc_handlers([self])

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add services."""
        self._services += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing, because grpc.aio does not use registered handlers."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the wrapped handler of a method; None for an unknown method. gRPC then answers UNIMPLEMENTED."""
        wrapped = self._wrapped.get(details.method)
        if wrapped is None:
            found = (service.service(details) for service in self._services)
            handler: Any = next((handler for handler in found if handler is not None), None)
            if handler is None:
                Call(self._calls, "other").end("UNIMPLEMENTED")
                return None
            guard, receive = self._guard, None if handler.request_streaming else _read
            if guard is not None and details.method.startswith(_HEALTH):
                guard, receive = None, self._strangers.read
            read = decode_or_mark(handler.request_deserializer) or bytes
            write = handler.response_serializer or bytes
            name, make, wrap = next(row for row in HANDLER_KINDS if getattr(handler, row[0]) is not None)
            called = details.method.lstrip("/")
            begin = partial(_Answering, self._calls, called, guard, receive, read, write, self._new_id)
            wrapped = self._wrapped[details.method] = make(wrap(getattr(handler, name), begin))
        return wrapped


async def _read(context: Any) -> Any:
    return await context.read()


class _Answering(Call):
    """A call that the server answers, and its context. It counts the bytes that it reads and writes.

    It is a context manager. It calls the guard first. If the guard or the body raises an exception, it ends the call
    with the exception's status.
    """

    __slots__ = ("_context", "_guard", "_new_id", "_read", "_receive", "_write")

    def __init__(
        self,
        calls: CallSink | None,
        name: str,
        guard: _Guard | None,
        receive: Callable[[Any], Awaitable[Any]] | None,
        read: Callable[[bytes], Any],
        write: Callable[[Any], bytes],
        new_id: Callable[[], str],
        context: Any,
    ) -> None:
        super().__init__(calls, name)
        self._new_id = new_id
        self._context = context
        self._guard, self._receive, self._read, self._write = guard, receive, read, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def __aenter__(self) -> "_Answering":
        try:
            if self._guard is not None:
                self._guard(self._context)
        except Exception as error:
            await self.__aexit__(type(error), error, None)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del trace  # see _abort
        try:
            if isinstance(error, Exception):
                await _abort(self._context, error, self._new_id)
        finally:
            code = None if error is None else self._context.code()
            self.end("OK" if error is None else "CANCELLED" if code is None else code.name)

    async def read(self) -> Any:
        """Return the next message, or grpc.aio.EOF."""
        data = await self._context.read()
        return data if data is grpc.aio.EOF else self.message(data)

    async def write(self, message: Any) -> None:
        """Send a message."""
        await self._context.write(self.response(message))

    async def request(self, requests: AsyncIterator[bytes]) -> Any:
        """Return the request as a message, or an iterator of messages if the caller streams its requests."""
        if self._receive is None:
            return self._messages(requests)
        data = await self._receive(self._context)
        if data is grpc.aio.EOF:
            raise Internal("the call ended without a whole request; this method takes one message")
        return decoded(self.message(data))

    async def _messages(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield decoded(self.message(data))

    def message(self, data: bytes) -> Any:
        """Return received bytes as a message, or as an object that decoded() refuses."""
        self.received += len(data)
        return self._read(data)

    def response(self, message: Any) -> bytes:
        """Serialize a response. Returns a response unchanged if it is already bytes."""
        data: bytes = message if type(message) is bytes else self._write(message)
        self.sent += len(data)
        return data


_Begin = Callable[[Any], _Answering]


def _unary(behavior: Callable[[Any, Any], Awaitable[Any]], begin: _Begin) -> Callable[[Any, Any], Awaitable[Any]]:
    async def handle(requests: Any, context: Any) -> Any:
        async with begin(context) as call:
            return call.response(await behavior(await call.request(requests), context))

    return handle


def _streaming(behavior: Callable[[Any, Any], Any], begin: _Begin) -> Callable[[Any, Any], Any]:
    async def with_context(requests: Any, context: Any) -> None:
        """Handle a call whose behaviour itself calls read() and write()."""
        async with begin(context) as call:
            # Without this line grpc.aio sends the metadata with the first message. If an error cancels that write,
            # grpc.aio sends the metadata again with the status. gRPC refuses that, and the caller gets no status.
            await context.send_initial_metadata(())
            await behavior(await call.request(requests), call)

    async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
        async with begin(context) as call, aclosing(behavior(await call.request(requests), context)) as responses:
            async for response in responses:
                yield call.response(response)

    return with_context if inspect.iscoroutinefunction(behavior) else handle


def metadata_value(context: Any, name: str) -> str:
    """Return the first metadata value of this name; an empty string if there is none."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == name), "")


async def _abort(context: Any, error: Exception, new_id: Callable[[], str]) -> NoReturn:
    """End the call with the status of an exception. Only a CallError's text is sent to the caller."""
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
        raise error
    given_error, given = error, metadata_value(context, REQUEST_ID_KEY)
    call_id = given[:128] if given else new_id()
    if not isinstance(error, CallError):
        log.error("request %s failed", call_id, exc_info=error)
        error = Internal(f"an internal error; the server's log has the traceback under request {call_id}")
    trailers: list[tuple[str, str | bytes]] = [(REQUEST_ID_KEY, call_id)]
    status = to_status(error)
    if status.details:
        trailers.append((DETAILS_KEY, status.SerializeToString()))
    if error.retry_after is not None and isinstance(error, ResourceExhausted):
        trailers.append(("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))))
    # gRPC keeps the exception of abort() with the call. Its chain of tracebacks would keep the request, of up to 64
    # MiB, until the next garbage collection.
    given_error.__traceback__ = given_error.__cause__ = given_error.__context__ = None
    await context.abort(_CODES[status.code], status.message, tuple(trailers))
    raise AssertionError("abort() raises")


HANDLER_KINDS = (
    ("unary_unary", grpc.stream_unary_rpc_method_handler, _unary),
    ("unary_stream", grpc.stream_stream_rpc_method_handler, _streaming),
    ("stream_unary", grpc.stream_unary_rpc_method_handler, _unary),
    ("stream_stream", grpc.stream_stream_rpc_method_handler, _streaming),
)
"""How each kind of handler is wrapped. All are registered as if the caller streamed its requests, because grpc.aio
reads the request of any other call, up to 64 MiB, before it calls the handler and thus the guard. The caller sees no
difference."""
