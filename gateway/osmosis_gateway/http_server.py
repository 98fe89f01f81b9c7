"""Runs uvicorn on the current event loop, and serves the legacy HTTP contract with an agent server's engine."""

import asyncio
import contextlib
import importlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware

from osmosis_gateway.in_process import InProcessRollouts
from osmosis_gateway.leases import Leases, LeaseTimes
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.lifecycle import Lifecycle
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.rollout_routes import add_rollout_routes
from osmosis_gateway.routes import HttpAccess, add_metrics, add_routes, gateway_app
from osmosis_gateway.workers import KIND, SiblingGuard, WorkerCalls, WorkerRoutes
from osmosis_grpc.network import fork_safety
from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.connection_limit import agent_connections, default_connections
from osmosis_grpc.network.http.http1 import AWAIT_HEAD, HEAD_SECONDS, BoundedProtocol
from osmosis_grpc.network.http.limited_socket import BACKLOG, IN_ONE_PASS, LimitedSocket
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import ServerTls, client_context, server_context
from osmosis_grpc.server import AgentServer
from osmosis_grpc.settings.settings import RolloutSettings, get_settings
from osmosis_grpc.supervise import OnFailure, Supervisor, call_later, job

SERVE_HTTP = job("gateway.serve_http", OnFailure.FAIL_OWNER)
METRICS_CONNECTIONS = 32
"""The most connections to the port of --metrics-port at once. One address, such as 127.0.0.1, has half of them."""


class HttpServer:
    """Serves an ASGI application. Used as `async with HttpServer(app, port=0) as http`.

    With `tls`, it uses TLS. `connections` is the most connections at once, and one address has at most half of them.
    Without it, the server is for agents, and the limit is agent_connections() for all addresses. With `path`, it
    listens at this Unix socket, and not at a host and a port, and has no limit.

    If uvicorn ends unexpectedly, `supervisor` records the failure. Without `supervisor`, the server makes its own.
    Raises ValueError for a TLS file that cannot be used. Entering the context raises OSError if the port is taken.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ServerTls | None = None,
        supervisor: Supervisor | None = None,
        path: Path | None = None,
        connections: int | None = None,
    ) -> None:
        self._path = path
        self.supervisor = supervisor or Supervisor("the HTTP server")
        self.app = app
        self._tls = server_context(tls) if tls is not None else None
        self._host = host
        self.port = port
        self._connections = connections
        self._server: Uvicorn
        self._task: asyncio.Task[None]
        self._stopping = False

    @property
    def address(self) -> str:
        """HOST:PORT with the bound port."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def __aenter__(self) -> "HttpServer":
        if self._path is not None:
            listening = listen_at(self._path)
            fork_safety.keep_from_children(self, str(self._path))
        else:
            listening = listen_on(self._host, self.port, self._connections)
            self.port = listening.getsockname()[1]
            fork_safety.keep_from_children(self, self.port)
        config = uvicorn_config(self.app, listening)
        config.ssl = self._tls
        if isinstance(listening, LimitedSocket) and self._tls is not None:
            listening.on_accept = lambda made: call_later(AWAIT_HEAD, HEAD_SECONDS, made.end_handshake)
        self._server = Uvicorn(config)
        self._task = self.supervisor.start(SERVE_HTTP, lambda: self._serve(listening))
        while not self._server.started:
            if self._task.done():
                listening.close()
                raise OSError(f"HTTP did not start on {self.address}") from self.supervisor.failure
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._stopping = self._server.should_exit = True
        await self._task
        fork_safety.release(self)

    async def _serve(self, listening: socket.socket) -> None:
        """Run uvicorn until __aexit__ stops it. Raises RuntimeError if uvicorn ends by itself."""
        await self._server.serve(sockets=[listening])
        if not self._stopping:
            raise RuntimeError("the HTTP server has stopped by itself")


def uvicorn_config(app: FastAPI, listening: socket.socket, *, lifespan: bool = True) -> uvicorn.Config:
    """Return the loaded uvicorn configuration for an application, and the socket on which it listens.

    Leave out `lifespan` if the application has no startup or shutdown of its own: an ending event loop would cancel its
    task.
    """
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on" if lifespan else "off",
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )
    config.load()
    if isinstance(listening, LimitedSocket):
        config.backlog = IN_ONE_PASS
        config.http_protocol_class = partial(BoundedProtocol, listening=listening)  # type: ignore[assignment] # uvicorn only calls it
    return config


class Uvicorn(uvicorn.Server):
    """A uvicorn server within a process that handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def listen_on(host: str, port: int, connections: int | None = None) -> socket.socket:
    """Return a listening socket. Raises OSError if the port is taken.

    It has at most `connections` connections at once, and half of them from one address. Without `connections`, the
    limit is agent_connections() for all addresses.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    most = connections or agent_connections()
    listening = LimitedSocket(family, most, max(1, most // 2) if connections else most)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for a port in TIME_WAIT, not for two servers
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listening


def listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at a path. A socket that a killed process has left there is replaced."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(2048)
    listening.setblocking(False)
    return listening


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
        app = gateway_app("osmosis_grpc")
        http_access = HttpAccess(
            tokens=security.tokens or tokens_of(known),
            admin_tokens=security.admin_tokens,
            certificates=security.asks_certificates,
            max_metadata_bytes=server.config.max_metadata_bytes,
            loopback=server.on_loopback,
        )
        app.state.rollouts, app.state.metrics = InProcessRollouts(server.engine, trainers.peer), server.metrics
        app.state.leases, app.state.lifecycle = leases, Lifecycle(server.engine, lambda: server.order_drain(True))
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
    app = gateway_app("osmosis_grpc", openapi_url=None)
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
