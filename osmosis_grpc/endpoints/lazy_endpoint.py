"""Opens the base URL of a rollout when its agent first asks for `RolloutContext.chat_completions_url`."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.network.http.server import Uvicorn, listen_on, uvicorn_config
from osmosis_grpc.supervise import OnFailure, Supervisor, job

SERVE_ENDPOINTS = job("gateway.serve_endpoints", OnFailure.RESTART)

HOST = "127.0.0.1"


class _Server:
    """The HTTP server of all endpoints of one event loop. It runs while at least one endpoint is open.

    If it fails, it restarts on the same port. A client that connects meanwhile waits or is refused.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._supervisor = Supervisor("the base URLs of the rollouts")
        self._listening: socket.socket = listen_on(HOST, 0)
        self._port: int = self._listening.getsockname()[1]
        self.endpoints = Endpoints(lambda: f"http://{HOST}:{self._port}")
        self.users = 0
        self._app = base_url_app(self.endpoints)
        self._uvicorn: Uvicorn | None = None
        self._stopping = False

    def start(self) -> None:
        """Start serving. A client that connects earlier waits."""
        self._loop.call_soon_threadsafe(self._supervisor.start, SERVE_ENDPOINTS, self._serve)

    def stop(self) -> None:
        """Stop after the open requests."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _serve(self) -> None:
        """Run uvicorn until stop(). Raises RuntimeError if uvicorn ends earlier."""
        if self._stopping:
            self._listening.close()
            return
        if self._listening.fileno() < 0:
            self._listening = listen_on(HOST, self._port)
        uvicorn = self._uvicorn = Uvicorn(uvicorn_config(self._app, self._listening, lifespan=False))
        try:
            await uvicorn.serve(sockets=[self._listening])
            if not self._stopping:
                raise RuntimeError("the HTTP server has stopped by itself")
        finally:
            for server in getattr(uvicorn, "servers", ()):  # uvicorn leaves its sockets open if it fails
                server.close()
            self._listening.close()


_lock = threading.Lock()
_servers: dict[asyncio.AbstractEventLoop, _Server] = {}


@contextmanager
def lazy_endpoint(context: RolloutContext, loop: asyncio.AbstractEventLoop) -> Iterator[Endpoint]:
    """Serve the base URL of a running rollout on loopback. Its key is valid until the end of the block.

    The server runs on `loop`. The block can begin on any thread. Raises OSError if no port is free.
    """
    with _lock:
        server = _servers.get(loop)
        if server is None:
            server = _servers[loop] = _Server(loop)
            server.start()
        server.users += 1
    try:
        with server.endpoints.open(context) as endpoint:
            yield endpoint
    finally:
        with _lock, suppress(KeyError):
            server.users -= 1
            if not server.users:
                server.stop()
                if _servers[loop] is server:
                    del _servers[loop]
