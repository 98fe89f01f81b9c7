"""The server's side of every call: request ids, undecodable bytes, exceptions as statuses."""

import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from osmosis_grpc.errors import CallError, Internal, InvalidArgument, ResourceExhausted
from osmosis_grpc.link.calls import DETAILS_KEY
from osmosis_grpc.wire.status import to_status

log = logging.getLogger(__name__)

REQUEST_ID_KEY = "x-request-id"
request_id: ContextVar[str] = ContextVar("osmosis_grpc_request_id", default="")
"""The id of the call that is being handled: the caller's, or one made here."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Undecodable:
    """Stands for bytes that are no message of their type."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server, each once."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        known, wrapped = self._wrapped.get(details.method, (None, None))
        if known is not handler:
            make, name, wrap = next(row for row in _SHAPES if getattr(handler, row[1]) is not None)
            wrapped = make(
                wrap(getattr(handler, name)),
                request_deserializer=careful(handler.request_deserializer),
                response_serializer=_ready(handler.response_serializer),
            )
            self._wrapped[details.method] = handler, wrapped
        return wrapped


def _ready(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """What is bytes already is sent as it is."""
    if serialize is None:
        return None
    return lambda message: message if type(message) is bytes else serialize(message)


def careful(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Bytes that are no message become an object that decoded() refuses; grpc.aio itself answers UNKNOWN."""
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Undecodable(str(error))

    return read


def _unary(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def handle(request: Any, context: Any) -> Any:
        own_id = _begin(context)
        try:
            result = behavior(decoded(request), context)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            await _abort(context, error, own_id)

    return handle


def _streaming(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    if inspect.iscoroutinefunction(behavior):  # it reads and writes its context by itself
        return _unary(behavior)

    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        own_id = _begin(context)
        try:
            async with aclosing(behavior(decoded(request), context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _abort(context, error, own_id)

    return handle


def _begin(context: Any) -> str:
    given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY), None)
    own_id = str(given)[:128] if given else uuid.uuid4().hex
    request_id.set(own_id)
    context.set_trailing_metadata(((REQUEST_ID_KEY, own_id),))
    return own_id


def decoded(request: Any) -> Any:
    """A message, or messages, as they were read. Raises InvalidArgument for bytes that are none."""
    if isinstance(request, _Undecodable):
        raise InvalidArgument("", f"the bytes are not a message of this method's type: {request.problem}")
    if hasattr(request, "__aiter__"):
        return _each_decoded(request)
    return request


async def _each_decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield decoded(request)


async def _abort(context: Any, error: Exception, call_id: str) -> NoReturn:
    """End the call with the status of an exception; its text is only shown when it was meant to be."""
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
        raise error
    if not isinstance(error, CallError):
        log.error("request %s failed", call_id, exc_info=error)
        error = Internal(f"an internal error; the server's log tells more under request {call_id}")
    trailers: list[tuple[str, str | bytes]] = [(REQUEST_ID_KEY, call_id)]
    status = to_status(error)
    if status.details:
        trailers.append((DETAILS_KEY, status.SerializeToString()))
    if error.retry_after is not None and isinstance(error, ResourceExhausted):
        trailers.append(("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))))
    await context.abort(_CODES[status.code], status.message, tuple(trailers))
    raise AssertionError("abort returns nowhere")


_SHAPES = (
    (grpc.unary_unary_rpc_method_handler, "unary_unary", _unary),
    (grpc.unary_stream_rpc_method_handler, "unary_stream", _streaming),
    (grpc.stream_unary_rpc_method_handler, "stream_unary", _unary),
    (grpc.stream_stream_rpc_method_handler, "stream_stream", _streaming),
)
