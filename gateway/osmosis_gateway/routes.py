"""The HTTP routes of the legacy contract, for an engine in this process and for an engine behind gRPC."""

import asyncio
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI, Request, Security
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import Scope

from osmosis_gateway import http_bodies
from osmosis_gateway.http_bodies import Health, InitAnswer, InitBody
from osmosis_gateway.leases import Leases
from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.http.bounded_json import Bounds, init_refusal, read_json
from osmosis_grpc.network.http.guard import Guard, bound_to_loopback, from_test_client
from osmosis_grpc.protocol.errors import CallError, MissingExtraError, NotFound, PermissionDenied, Unimplemented
from osmosis_grpc.protocol.types import InitRequest, ToolDict, TraceContext

_DETAIL = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}
_JSON_DETAIL = {"application/json": {"schema": _DETAIL}}
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_WORDS = {
    400: "The body has two lengths, or was cut off.",
    401: "No bearer token, or a wrong one.",
    403: "The lease, or the token, does not allow this.",
    404: "There is no such agent loop, or no such rollout.",
    408: "The body did not arrive in time.",
    409: "The id, or the idempotency key, belongs to another request.",
    410: "The rollout has ended.",
    413: "The body is too large.",
    415: "The body is not plain application/json.",
    421: "The server is on loopback without credentials, and the Host header does not name this machine.",
    424: "The trainer gave no reply. Do not retry.",
    429: "At capacity; retry later.",
    500: "The agent's get_tools failed.",
    501: "The library that metrics need is not installed, or this gateway has no engine.",
    503: "Draining, or the agent server cannot be reached; retry later.",
}


class Rollouts(Protocol):
    """The methods that the routes call."""

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        """Start a rollout and return its id and tools. Raises CallError."""

    async def health(self) -> dict[str, Any]:
        """Return the fields of Health. Raises CallError."""

    @property
    def leases(self) -> Leases:
        """The leases of polled rollouts. Raises CallError if the engine is not in this process, as cancel() does."""

    async def cancel(self, owner: str, ids: Iterable[str] | None, prefix: str | None) -> dict[str, str]:
        """Cancel the owner's rollouts with these ids, or with this id prefix, or all. Return a disposition for each."""

    async def drain(self, owner: str, seconds: float) -> dict[str, Any]:
        """Start a drain, and wait at most `seconds` until no rollout runs. Return the rollouts that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """The credentials that HTTP callers need, and the limits of their requests."""

    tokens: Tokens = field(default_factory=Tokens)
    """Each caller must send one of these tokens."""
    certificates: bool = False
    """Whether callers also need a client certificate. Without tokens and certificates every caller is allowed."""
    admin_tokens: Tokens = field(default_factory=Tokens)
    """A caller of /drain must send one of these tokens."""
    max_metadata_bytes: int
    loopback: bool | None = None
    """Whether the server is bound to loopback. None means: decide for each connection by its address."""
    bounds: Bounds = Bounds()

    @property
    def guarded(self) -> bool:
        """Whether every caller is authenticated."""
        return bool(self.tokens) or self.certificates

    def check_admin(self, scope: Scope) -> None:
        """Raise PermissionDenied unless the caller is an administrator. See ServerSecurity.check_admin()."""
        if self.admin_tokens:
            if self.admin_tokens.owner(Headers(scope=scope).get("authorization", "")) is None:
                raise PermissionDenied("this call needs an administrator's token")
        elif self.guarded:
            raise PermissionDenied("this call needs an administrator's token, and this server has none")
        elif not bound_to_loopback(scope, self.loopback):
            raise PermissionDenied("without an administrator's token only callers on the server's machine may do this")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of error responses."""
    rows: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        rows[status] = {"description": _WORDS[status], "content": _JSON_DETAIL}
        if status in (429, 503):
            rows[status]["headers"] = _RETRY
    return rows


def body_of(model: Any) -> dict[str, Any]:
    """Return the OpenAPI entry of a body that the route parses itself, without FastAPI."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def invalid() -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entry of status 422."""
    row = http_bodies.Problem.model_json_schema()
    schema = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "array", "items": row}}}
    return {422: {"description": "Names what is wrong.", "content": {"application/json": {"schema": schema}}}}


def add_routes(app: FastAPI, access: HttpAccess) -> None:
    """Add the routes of the contract to an application.

    Before the application runs, set `app.state.rollouts` to a Rollouts and `app.state.metrics` to a Source.
    """
    add_metrics(app, access)
    guarded = bearer_of(access)

    @app.post(
        http_bodies.INIT_PATH,
        status_code=202,
        response_model=InitAnswer,
        dependencies=guarded,
        responses=responses(400, 401, 404, 408, 409, 413, 415, 421, 429, 500, 503) | invalid(),
        openapi_extra=body_of(InitBody),
    )
    async def init_rollout(request: Request) -> JSONResponse:
        """Start a rollout. A repeated request gets the same answer and starts nothing."""
        body, size = await read_json(request, access.bounds)
        init = http_bodies.read_init(body, size, access.max_metadata_bytes, trace_of(request))
        owner, loopback = getattr(request.state, "owner", ""), bound_to_loopback(request.scope, access.loopback)
        try:
            rollout_id, tools = await rollouts_of(request).init(
                init, owner=owner, authenticated=access.guarded, loopback=loopback
            )
        except CallError as error:
            raise init_refusal(error) from None
        note_test_client(request)
        return JSONResponse(http_bodies.init_answer(rollout_id, tools), 202)

    @app.get("/health", response_model=Health, responses=responses(503))
    async def health(request: Request) -> dict[str, Any]:
        """Return whether the server serves, and its counts. It needs no credential."""
        return await rollouts_of(request).health()

    @app.get(
        "/platform/health",
        response_model=Health,
        dependencies=guarded,
        responses=responses(401, 503) | {404: {"description": "This server has no token.", "content": _JSON_DETAIL}},
    )
    async def platform_health(request: Request) -> dict[str, Any]:
        """Return the same as /health, for authenticated callers. 404 on a server without credentials."""
        if not access.guarded:
            raise NotFound("this server has no token, and so no /platform/health")
        return await rollouts_of(request).health()


def add_metrics(app: FastAPI, access: HttpAccess) -> None:
    """Add authentication and the route /metrics to an application. The route reads the Source `app.state.metrics`."""
    # The guard is inside OneBody, because OneBody closes the connection when the guard leaves a body unread.
    guard = Middleware(
        Guard,
        tokens=access.tokens,
        admin_tokens=access.admin_tokens,
        certificates=access.certificates,
        loopback=access.loopback,
    )
    app.user_middleware.append(guard)
    hidden: dict[int | str, dict[str, Any]] = {
        404: {"description": "This server has no token and is not on loopback.", "content": _JSON_DETAIL}
    }

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        dependencies=bearer_of(access),
        responses=responses(401, 421, 501) | hidden,
    )
    async def metrics(request: Request) -> Response:
        """Return metrics for Prometheus to authenticated callers. A server without credentials does so on loopback."""
        if not (access.guarded or bound_to_loopback(request.scope, access.loopback)):
            raise NotFound("this server has no token and is not on loopback, and so no /metrics")
        readings = list(request.app.state.metrics.read())
        try:
            exposition = await asyncio.to_thread(importlib.import_module, "osmosis_grpc.observability.exposition")
            page, kind = await asyncio.to_thread(exposition.render, readings, request.headers.get("accept", ""))
        except MissingExtraError as error:
            raise Unimplemented(str(error)) from None
        return Response(page, headers={"content-type": kind})


def bearer_of(access: HttpAccess) -> list[Any]:
    """Return the OpenAPI entry of a route that requires a token; an empty list if no token is required."""
    return [Security(HTTPBearer(auto_error=False, description="OSMOSIS_ROLLOUT_SERVER_TOKEN"))] if access.tokens else []


def rollouts_of(request: Request) -> Rollouts:
    """Return the Rollouts of the application."""
    rollouts: Rollouts = request.app.state.rollouts
    return rollouts


def note_test_client(request: Request) -> None:
    """Note that a TestClient has started a rollout. The application then stops without waiting for rollouts."""
    if from_test_client(request.scope):
        request.app.state.called_by_test_client = True


def trace_of(request: Request) -> TraceContext | None:
    """Return the trace context of a request; None if there is no valid one."""
    parent, state = request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
    fits = len(parent) <= 256 and len(state) <= 4096 and (parent + state).isascii() and (parent + state).isprintable()
    return TraceContext(parent, state) if parent and fits else None
