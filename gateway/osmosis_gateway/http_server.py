"""Serves the legacy HTTP contract, and metrics, with the engine of an agent server."""

import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from osmosis_gateway.in_process import InProcessRollouts
from osmosis_gateway.leases import Leases, LeaseTimes
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.rollout_routes import add_rollout_routes
from osmosis_gateway.routes import HttpAccess, add_metrics, add_routes
from osmosis_gateway.workers import KIND, SiblingGuard, WorkerCalls, WorkerRoutes
from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.channel_options import default_connections
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import client_context
from osmosis_grpc.server import AgentServer
from osmosis_grpc.settings.settings import RolloutSettings, get_settings

METRICS_CONNECTIONS = 32
"""The most connections to the port of --metrics-port at once. One address, such as 127.0.0.1, has half of them."""


def tokens_of(settings: RolloutSettings) -> Tokens:
    """Return the tokens with which callers authenticate."""
    return Tokens(settings.server.tokens)


@asynccontextmanager
async def serve_http(
    server: AgentServer,
    *,
    host: str = "127.0.0.1",
    port: int = 9000,
    settings: RolloutSettings | None = None,
    lease_times: LeaseTimes | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve the legacy contracts over HTTP with the engine of a running agent server.

    While the HTTP server runs, a gRPC caller can also pass an http:// or https:// callback. HTTP uses the tokens and
    the TLS files of the agent server. If the agent server has no tokens, HTTP uses the tokens of the settings.

    Of several workers, only worker 0 listens at the port. It passes requests on to the others, which listen at sockets.
    """
    known, security = settings or get_settings(), server.security
    security.check_host(host)
    tls = client_context(server.credentials.tls) if server.credentials.tls else None
    async with AsyncExitStack() as stack:
        calls = await stack.enter_async_context(Calls(known.client, checked_only=True, tls=tls))
        leases = Leases(server.engine, lease_times)
        trainers = HttpTrainers(calls, server.callbacks.policy, known.client, leases)
        app = http_app("osmosis_grpc")
        http_access = HttpAccess(
            tokens=security.tokens or tokens_of(known),
            admin_tokens=security.admin_tokens,
            certificates=security.asks_certificates,
            max_metadata_bytes=server.config.max_metadata_bytes,
            loopback=server.on_loopback,
        )
        app.state.rollouts = InProcessRollouts(server.engine, trainers.peer, leases, lambda: server.order_drain(True))
        app.state.metrics = server.metrics
        leases.start()
        add_routes(app, http_access)
        add_rollout_routes(app, http_access)
        path = await _join_workers(stack, app, server, http_access)
        schemes = dict.fromkeys(("http", "https"), trainers.peer)
        server.callbacks.schemes |= schemes
        try:
            limit = server.config.max_connections or default_connections()
            listens: dict[str, Any] = {"path": path}
            if path is None:
                listens = {"host": host, "port": port, "tls": security.tls, "connections": limit}
            async with HttpServer(app, supervisor=server.supervisor, **listens) as http:
                yield http
        finally:
            for scheme in schemes:
                server.callbacks.schemes.pop(scheme, None)


@asynccontextmanager
async def serve_metrics(server: AgentServer, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HttpServer]:
    """Serve /metrics of an agent server on loopback, without authentication.

    Raises MissingExtraError without prometheus_client, and OSError if the port is taken.
    """
    importlib.import_module("osmosis_grpc.observability.exposition")
    app = http_app("osmosis_grpc", openapi_url=None)
    app.state.metrics = server.metrics
    access = HttpAccess(max_metadata_bytes=0, loopback=True)
    add_metrics(app, access)
    async with AsyncExitStack() as stack:
        await _join_workers(stack, app, server, access)
        loopback = host if is_loopback(host) else "127.0.0.1"
        http = HttpServer(app, host=loopback, port=port, connections=METRICS_CONNECTIONS)
        yield await stack.enter_async_context(http)


async def _join_workers(stack: AsyncExitStack, app: FastAPI, server: AgentServer, access: HttpAccess) -> Path | None:
    """Make an application of worker 0 answer for all workers. For another worker, return the path of its socket.

    Do nothing if the server is one process.
    """
    if server.routes is None:
        return None
    config = server.routes.siblings.config
    if config.index:
        app.user_middleware[-1] = Middleware(SiblingGuard, secret=config.secret)
        return config.socket(config.index, KIND)
    calls = await stack.enter_async_context(WorkerCalls(config))
    app.user_middleware.append(Middleware(WorkerRoutes, routes=server.routes, calls=calls, bounds=access.bounds))
    return None
