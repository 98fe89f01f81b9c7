"""Runs uvicorn on the current event loop, with the bounds of connections.py."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from osmosis_grpc import __version__
from osmosis_grpc.network import forked_sockets
from osmosis_grpc.network.channel_options import agent_connections
from osmosis_grpc.network.http.bounded_json import internal, refusal
from osmosis_grpc.network.http.connections import (
    AWAIT_HEAD,
    BACKLOG,
    HEAD_SECONDS,
    IN_ONE_PASS,
    BoundedProtocol,
    LimitedSocket,
    OneBody,
)
from osmosis_grpc.network.tls import ServerTls, server_context
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.supervise import OnFailure, Supervisor, call_later, job

SERVE_HTTP = job("gateway.serve_http", OnFailure.FAIL_OWNER)


def http_app(title: str, **more: Any) -> FastAPI:
    """Return an application without routes. It has /openapi.json. It has no /docs, because /docs loads CDN scripts."""
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, **more)
    app.add_middleware(OneBody)
    app.add_exception_handler(CallError, refusal)
    app.add_exception_handler(Exception, internal)
    return app


class HttpServer:
    """Serves an ASGI application. Used as `async with HttpServer(app, port=0) as http`.

    Only a FastAPI application has a startup and a shutdown. With `tls`, it uses TLS. `connections` is the most
    connections at once, and one address has at most half of them. Without it, the server is for agents, and the limit
    is agent_connections() for all addresses. With `path`, it listens at this Unix socket, and not at a host and a port,
    and has no limit.

    If uvicorn ends unexpectedly, `supervisor` records the failure. Without `supervisor`, the server makes its own.
    Raises ValueError for a TLS file that cannot be used. Entering the context raises OSError if the port is taken.
    """

    def __init__(
        self,
        app: ASGIApp,
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
            forked_sockets.keep_from_children(self, str(self._path))
        else:
            listening = listen_on(self._host, self.port, self._connections)
            self.port = listening.getsockname()[1]
            forked_sockets.keep_from_children(self, self.port)
        config = uvicorn_config(self.app, listening, lifespan=isinstance(self.app, FastAPI))
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
        forked_sockets.release(self)

    async def _serve(self, listening: socket.socket) -> None:
        """Run uvicorn until __aexit__ stops it. Raises RuntimeError if uvicorn ends by itself."""
        await self._server.serve(sockets=[listening])
        if not self._stopping:
            raise RuntimeError("the HTTP server has stopped by itself")


def uvicorn_config(app: ASGIApp, listening: socket.socket, *, lifespan: bool = True) -> uvicorn.Config:
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
