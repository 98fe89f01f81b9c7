"""Opens the base URL of a rollout when its agent first asks for it. `RolloutContext.chat_completions_url` uses it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from osmosis_gateway.base_url.app import base_url_app
from osmosis_gateway.base_url.endpoints import Endpoint, Endpoints
from osmosis_gateway.http_server import Uvicorn, listen_on, uvicorn_config
from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.supervise import OnFailure, child, job

SERVE_ENDPOINTS = job("gateway.serve_endpoints", OnFailure.RAISE)

HOST = "127.0.0.1"


class _Server:
    """The server of all endpoints of one event loop. It runs while at least one endpoint is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listening: socket.socket = listen_on(HOST, 0)
        port = self._listening.getsockname()[1]
        self.endpoints = Endpoints(lambda: f"http://{HOST}:{port}")
        self.users = 0
        self._uvicorn = Uvicorn(uvicorn_config(base_url_app(self.endpoints)))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve. A client that connects before this has happened waits."""
        self._loop.call_soon_threadsafe(self._start)

    def stop(self) -> None:
        """Stop after the open requests."""
        self._uvicorn.should_exit = True

    def _start(self) -> None:
        self._task = child(SERVE_ENDPOINTS, self._serve())

    async def _serve(self) -> None:
        try:
            await self._uvicorn.serve(sockets=[self._listening])
        finally:
            self._listening.close()


_lock = threading.Lock()
_servers: dict[asyncio.AbstractEventLoop, _Server] = {}
"""The running server of each event loop."""


@contextmanager
def lazy_endpoint(context: RolloutContext, loop: asyncio.AbstractEventLoop) -> Iterator[Endpoint]:
    """Serve the base URL of a running rollout on loopback. At the end of the block its key becomes invalid.

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
