"""HTTP/1.1 limits that uvicorn does not have: a timeout for request heads, one body length, no unread bodies.

limited_socket.py limits the number of connections.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from osmosis_grpc.network.http.guard import certificate_owner
from osmosis_grpc.network.http.limited_socket import LimitedSocket
from osmosis_grpc.supervise import OnFailure, call_later, job

AWAIT_HEAD = job("gateway.await_head", OnFailure.REPORT, "timer")

HEAD_SECONDS = 20.0
"""A connection is closed if a request's head does not arrive within this many seconds.

The time begins when a connection opens, and later with the first bytes of each further request.
"""


Watcher = Callable[[bool, bool], object]
"""Gets whether the client has read the whole response, as far as is known, and whether the connection has ended."""


class Connection:
    """Finds out whether a client reads the response to a request. In the scope of a request: state["connection"].

    A client that closes its connection before it has read everything resets it. So a response is read if the client
    sends another request, or closes the connection without a reset.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._watcher: Watcher | None = None
        self._ended = False

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` once, as soon as it is known whether the client has read the response that now begins."""
        if self._ended:
            watcher(False, True)
        else:
            self._watcher = watcher

    def tell(self, whole: bool, ended: bool) -> None:
        """Note that the client has sent another request, or that the connection has ended."""
        self._ended, watcher, self._watcher = ended, self._watcher, None
        if watcher is not None:
            watcher(whole, ended)

    def is_reset(self) -> bool:
        """Return whether the connection was reset, even if the event loop has not seen it yet."""
        held = self._transport.get_extra_info("socket")
        try:
            return self._ended or held is None or held.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        except OSError:
            return True


class BoundedProtocol(H11Protocol):
    """Closes a connection whose request head does not arrive in time. Says to `listening` when it has no request."""

    head_seconds = HEAD_SECONDS
    _waiting: asyncio.TimerHandle | None = None
    _cut = False
    """Whether the client has ended the connection in the middle of a response."""

    def __init__(self, *given: Any, listening: LimitedSocket | None = None, **more: Any) -> None:
        super().__init__(*given, **more)
        self._listening = listening

    def connection_made(self, transport: Any) -> None:
        owner = certificate_owner(transport.get_extra_info("peercert"))
        if owner is not None:
            self.app_state = self.app_state | {"certificate": owner}  # for the requests of this connection
        self._link = Connection(transport)
        self.app_state = self.app_state | {"connection": self._link}
        super().connection_made(transport)
        if self._listening is not None and self.client is not None:
            self._listening.attach(self.client, lambda: not (self._working() or transport.get_write_buffer_size()))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if not self._answering():
            self._link.tell(True, False)
            if self._waiting is None:
                self._await_head()
        super().data_received(data)
        if self._answering():
            self._head_came()

    def eof_received(self) -> None:
        self._cut = self._answering()  # the transport is closing, and drops whatever is written from now on

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        whole = exc is None and not (self._cut or self._answering() or self._link.is_reset())
        super().connection_lost(exc)
        self._link.tell(whole, True)

    def _answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _working(self) -> bool:
        """Return whether a request has arrived completely and its response has not ended.

        A connection with a slow body may be closed to make room for a new one.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return self._answering() and cycle is not None and not cycle.more_body

    def _await_head(self) -> None:
        self._waiting = call_later(AWAIT_HEAD, self.head_seconds, self.transport.close)

    def _head_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class OneBody:
    """ASGI middleware that refuses a request with two lengths. It closes the connection after an unread body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        names = {name for name, value in scope["headers"] if (name, value) != (b"content-length", b"0")}
        if {b"content-length", b"transfer-encoding"} <= names:  # request smuggling: two readers may see two requests
            refused = JSONResponse({"detail": "a body has one length"}, 400, {"Connection": "close"})
            await refused(scope, receive, send)
            return
        unread = bool(names & {b"content-length", b"transfer-encoding"})

        async def reading() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            if unread and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self.app(scope, reading, sending)
