"""The HTTP routes of an agent server, whichever engine is behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI, Request, Security
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.middleware import Middleware

from osmosis_gateway import contract
from osmosis_gateway.contract import Health, InitAnswer, InitBody
from osmosis_gateway.guard import Guarded, Local, bound_to_loopback
from osmosis_gateway.http1 import OneBody
from osmosis_gateway.metrics import render
from osmosis_gateway.request_body import Bounds, internal, read_json, refusal
from osmosis_grpc import __version__
from osmosis_grpc.errors import CallError, NotFound
from osmosis_grpc.link.tokens import Tokens
from osmosis_grpc.types import InitRequest, ToolDict, TraceContext

_DETAIL = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}
_JSON_DETAIL = {"application/json": {"schema": _DETAIL}}
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_WORDS = {
    400: "The body has two lengths, or was cut off.",
    401: "No bearer token, or a wrong one.",
    404: "There is no such agent loop.",
    408: "The body did not arrive in time.",
    409: "The id, or the idempotency key, belongs to another request.",
    410: "The rollout has ended.",
    413: "The body is too large.",
    415: "The body is not plain application/json.",
    421: "The server is on loopback, asks nobody who they are, and was called by a name that is not this machine's.",
    424: "The trainer gave no reply, and is not to be asked again.",
    429: "At capacity; ask again later.",
    500: "The agent's get_tools failed.",
    501: "The library that metrics need is not installed.",
    503: "Draining, or the server behind cannot be reached; ask again later.",
}


class Rollouts(Protocol):
    """What stands behind the routes."""

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        """Start a rollout: its id and tools. Raises CallError."""

    async def health(self) -> dict[str, Any]:
        """The fields of Health. Raises CallError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """How the routes are guarded."""

    tokens: Tokens = field(default_factory=Tokens)
    """Whoever shows one of them may start rollouts."""
    certificates: bool = False
    """Whether callers need a certificate, too. Without either everybody may."""
    max_metadata_bytes: int
    loopback: bool | None = None
    """Whether the server is bound to loopback; None when only each connection tells."""
    bounds: Bounds = Bounds()

    @property
    def guarded(self) -> bool:
        """Whether it is known of every caller who it is."""
        return bool(self.tokens) or self.certificates


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of refusals."""
    rows: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        rows[status] = {"description": _WORDS[status], "content": _JSON_DETAIL}
        if status in (429, 503):
            rows[status]["headers"] = _RETRY
    return rows


def body_of(model: Any) -> dict[str, Any]:
    """What OpenAPI says of a body that is read by hand."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def invalid() -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of 422."""
    row = contract.Problem.model_json_schema()
    schema = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "array", "items": row}}}
    return {422: {"description": "Names what is wrong.", "content": {"application/json": {"schema": schema}}}}


def add_routes(app: FastAPI, access: HttpAccess) -> None:
    """Put the routes of the contract on an application.

    Once it runs, `app.state.rollouts` stands behind them, and `app.state.metrics`, a Source, behind /metrics.
    """
    add_metrics(app, access)
    guarded = _bearer(access)

    @app.post(
        contract.INIT_PATH,
        status_code=202,
        response_model=InitAnswer,
        dependencies=guarded,
        responses=responses(400, 401, 404, 408, 409, 413, 415, 421, 429, 500, 503) | invalid(),
        openapi_extra=body_of(InitBody),
    )
    async def init_rollout(request: Request) -> JSONResponse:
        """Start a rollout. The same request again gives the same answer and starts nothing."""
        body, size = await read_json(request, access.bounds)
        init = contract.read_init(body, size, access.max_metadata_bytes, _trace(request))
        rollout_id, tools = await behind(request).init(
            init,
            owner=getattr(request.state, "owner", ""),
            authenticated=access.guarded,
            loopback=bound_to_loopback(request.scope, access.loopback),
        )
        return JSONResponse({"rollout_id": rollout_id, "tools": list(tools)}, 202)

    @app.get("/health", response_model=Health, responses=responses(503))
    async def health(request: Request) -> dict[str, Any]:
        """Whether the server serves, and its counts. Open to everybody."""
        return await behind(request).health()

    @app.get(
        "/platform/health",
        response_model=Health,
        dependencies=guarded,
        responses=responses(401, 503) | {404: {"description": "This server has no token.", "content": _JSON_DETAIL}},
    )
    async def platform_health(request: Request) -> dict[str, Any]:
        """The same for callers with a token; not there on a server that has none."""
        if not access.guarded:
            raise NotFound("this server has no token, and so no /platform/health")
        return await behind(request).health()


def add_metrics(app: FastAPI, access: HttpAccess) -> None:
    """Guard an application, and put /metrics on it; `app.state.metrics`, a Source, stands behind it."""
    if access.guarded:  # within OneBody, which ends the connection of a body that nobody reads
        app.user_middleware.append(Middleware(Guarded, tokens=access.tokens, certificates=access.certificates))
    else:
        app.user_middleware.append(Middleware(Local, loopback=access.loopback))
    hidden: dict[int | str, dict[str, Any]] = {
        404: {"description": "This server has no token and is not on loopback.", "content": _JSON_DETAIL}
    }

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        dependencies=_bearer(access),
        responses=responses(401, 421, 501) | hidden,
    )
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus, to callers with a token, or on loopback where there is none."""
        if not (access.guarded or bound_to_loopback(request.scope, access.loopback)):
            raise NotFound("this server has no token and is not on loopback, and so no /metrics")
        page, content_type = await render(request.app.state.metrics, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})


def _bearer(access: HttpAccess) -> list[Any]:
    """What OpenAPI says of a guarded route; nothing of an open one."""
    return [Security(HTTPBearer(auto_error=False, description="OSMOSIS_ROLLOUT_SERVER_TOKEN"))] if access.tokens else []


def behind(request: Request) -> Rollouts:
    """What stands behind the routes."""
    rollouts: Rollouts = request.app.state.rollouts
    return rollouts


def gateway_app(title: str, **more: Any) -> FastAPI:
    """An application without routes. Its pages are /openapi.json alone: /docs would load from elsewhere."""
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, **more)
    app.add_middleware(OneBody)
    app.add_exception_handler(CallError, refusal)
    app.add_exception_handler(Exception, internal)
    return app


def _trace(request: Request) -> TraceContext | None:
    parent, state = request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
    fits = len(parent) <= 256 and len(state) <= 4096 and (parent + state).isascii() and (parent + state).isprintable()
    return TraceContext(parent, state) if parent and fits else None
