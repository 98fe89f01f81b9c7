"""The routes of the base URLs.

Each API is a module with read(), write(), stream(), count(), too_long(), error() and stream_error().
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_grpc.agent.history_chats import POLICY
from osmosis_grpc.endpoints import anthropic_messages, chat_completions, gemini, responses
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.model_request import ModelRequest
from osmosis_grpc.endpoints.open_chats import ClientGone, OpenRequest
from osmosis_grpc.endpoints.request_bodies import read_asked, reserved_bytes
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.network.bearer_tokens import bearer
from osmosis_grpc.network.http.connections import OneBody
from osmosis_grpc.protocol.errors import CallError, ContextLengthExceeded, NotFound, RolloutEndedError
from osmosis_grpc.protocol.types.outcome import clip

log = logging.getLogger(__name__)

PREFIX = "/v1/rollouts/"
_MODELS = ("models", "v1/models", "v1beta/models")
_SERVED = "POST chat/completions, responses, messages and Gemini's generateContent, GET models"
_STREAM = "text/event-stream"
_PING = ": waiting for the reply\n\n"
"""A comment of a stream, which clients ignore."""

Answer = Callable[[Request, Endpoint], Awaitable[Response]]
Route = Mapping[str, tuple[ModuleType, Answer]]
"""For each HTTP method of a path: the API, which formats errors, and the handler."""
Read = Callable[[Any], ModelRequest]


class BaseUrlApp:
    """The ASGI application that serves the base URLs of all endpoints.

    It uses no web framework, because it handles every chat.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        rollout_id, _, rest = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or not rollout_id:
            return _unknown_path(request, 404)
        if not rest:  # some programs check the base URL before they use it
            here = request.method in ("GET", "HEAD")
            return JSONResponse({"serves": _SERVED}) if here else _unknown_path(request, 405, "GET, HEAD")
        route = _ROUTES.get(rest) or _model_route(request, rest)
        if route is None:
            return _unknown_path(request, 404)
        if request.method not in route:
            return _unknown_path(request, 405, ", ".join(route))
        api, answer = route[request.method]
        try:
            return await answer(request, self._endpoints.find(rollout_id, _key(request)))
        except Exception as error:
            return JSONResponse(*_failed(error, api, api.error), _retries(error))


def base_url_app(endpoints: Endpoints) -> ASGIApp:
    """Return the application that serves the base URLs of all endpoints."""
    return OneBody(BaseUrlApp(endpoints))


def _model_route(request: Request, rest: str) -> Route | None:
    """Return the route of a model's path, and store the model's name in the request's path parameters."""
    for prefix in _MODELS:
        if rest.startswith(prefix + "/"):
            request.scope["path_params"] = {"model": rest.removeprefix(prefix + "/")}
            return _MODEL_ROUTE
    return None


def _key(request: Request) -> str:
    """Return the key of a request. Where it is depends on the API."""
    headers = request.headers
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer(headers.get("authorization", ""))
    return key or request.query_params.get("key", "")


async def _gemini(request: Request, endpoint: Endpoint) -> Response:
    """Answer a call of one of a model's methods. Raises CallError, RolloutEndedError."""
    model, _, method = str(request.path_params["model"]).rpartition(":")
    if method == gemini.COUNT:
        return await _count(gemini, gemini.read_count, request, endpoint)
    if method not in gemini.METHODS:
        raise NotFound(f"the method {clip(method, 100)!r} is not served here", kind="method", name=method)
    return await _chat(gemini, request, endpoint, lambda body: gemini.of_call(gemini.read(body), model, method))


async def _count(api: ModuleType, read: Read, request: Request, endpoint: Endpoint) -> Response:
    """Answer with an estimate of how many tokens a request has. Raises CallError, RolloutEndedError."""
    size = await endpoint.budget.take(reserved_bytes(request))
    try:
        asked = await read_asked(request, read, endpoint.reading, endpoint.replies)
        return JSONResponse(api.count(endpoint.estimated_tokens(asked)))
    finally:
        endpoint.budget.give(size)


async def _chat(api: ModuleType, request: Request, endpoint: Endpoint, read: Read | None = None) -> Response:
    """Answer a request for a chat. Raises CallError, RolloutEndedError."""
    size = await endpoint.budget.take(reserved_bytes(request))
    try:
        asked = await read_asked(request, read or api.read, endpoint.reading, endpoint.replies)
        chat = endpoint.ask(asked, getattr(request.state, "connection", None))
    except BaseException:
        endpoint.budget.give(size)
        raise
    chat.chat.task.add_done_callback(lambda _: endpoint.budget.give(size))
    wanted = asked.request
    try:
        if not await chat.ended(endpoint.waits.headers if wanted.stream else None):
            return StreamingResponse(_waiting(api, wanted, endpoint, chat), media_type=_STREAM)
    except BaseException:
        endpoint.leave(chat)
        raise
    chat.send(stream=wanted.stream)
    try:
        results = chat.result()
    except ClientGone:
        return Response(status_code=499)
    if wanted.stream:
        return Response("".join(api.stream(wanted, *results)), media_type=_STREAM)
    return Response(to_json(api.write(wanted, *results)), media_type="application/json")


async def _waiting(api: ModuleType, wanted: ModelRequest, endpoint: Endpoint, chat: OpenRequest) -> AsyncIterator[str]:
    """Yield comments until the chat ends, and then its reply or its error. The status is already sent by then."""
    try:
        yield _PING
        while not await chat.ended(endpoint.waits.ping):
            yield _PING
        try:
            text = "".join(api.stream(wanted, *chat.result()))
        except ClientGone:
            return
        except Exception as error:
            text, _ = _failed(error, api, api.stream_error)
        chat.send(stream=True)
        yield text
    finally:
        if not chat.sent:
            endpoint.leave(chat)


async def _models(request: Request, endpoint: Endpoint) -> Response:
    return JSONResponse(
        {"object": "list", "data": [_described(POLICY)], "has_more": False, "first_id": POLICY, "last_id": POLICY}
    )


async def _model(request: Request, endpoint: Endpoint) -> Response:
    return JSONResponse(_described(str(request.path_params["model"])))  # every name exists: the policy ignores it


def _described(model: str) -> dict[str, Any]:
    openai = {"id": model, "object": "model", "created": 0, "owned_by": "trainer"}
    return openai | {"type": "model", "display_name": model, "created_at": "1970-01-01T00:00:00Z"}


def _unknown_path(request: Request, status: int, allow: str = "") -> Response:
    path: str = request.scope["path"]
    api = anthropic_messages if "/messages" in path else chat_completions
    what = f"{request.method} {clip(path, 300)} is not served here; a rollout's base URL serves {_SERVED}"
    code = "method_not_allowed" if status == 405 else "not_found"
    headers = {"x-should-retry": "false"} | ({"allow": allow} if allow else {})
    return JSONResponse(api.error(status, what, code), status, headers)


def _retries(error: Exception) -> dict[str, str]:
    """Return the headers that allow or forbid a retry. Only 429 allows it, as the engine has retried other errors."""
    if isinstance(error, CallError) and error.retry_after is not None and error.status_code == 429:
        return {"x-should-retry": "true", "retry-after": f"{math.ceil(error.retry_after)}"}
    return {"x-should-retry": "false"}


def _failed(error: Exception, api: ModuleType, write: Callable[[int, str, str], Any]) -> tuple[Any, int]:
    if isinstance(error, ContextLengthExceeded):
        return write(400, api.too_long(error), error.REASON.lower()), 400
    if isinstance(error, CallError):
        status, code = error.status_code, (error.reason or type(error).__name__).lower()
    elif isinstance(error, RolloutEndedError):
        status, code = 410, "rollout_ended"
    else:
        log.error("a request to a base URL failed", exc_info=error)
        status, code = 500, "internal"
        return write(status, "internal error; the server's log has the exception", code), status
    return write(status, str(error), code), status


def _chats(api: ModuleType) -> Route:
    return {"POST": (api, partial(_chat, api))}


def _counts(api: ModuleType) -> Route:
    """Return the route that counts the tokens of a request."""
    return {"POST": (api, partial(_count, api, api.read))}


_MODEL_ROUTE: Route = {"GET": (chat_completions, _model), "POST": (gemini, _gemini)}
_ROUTES: dict[str, Route] = {
    "chat/completions": _chats(chat_completions),
    "responses": _chats(responses),
    "messages": _chats(anthropic_messages),
    "v1/messages": _chats(anthropic_messages),
    "responses/input_tokens": _counts(responses),
    "messages/count_tokens": _counts(anthropic_messages),
    "v1/messages/count_tokens": _counts(anthropic_messages),
} | {path: {"GET": (chat_completions, _models)} for path in _MODELS}
