"""HTTP/1.1 connections with limits that uvicorn lacks: their number, request heads, body lengths, unread bodies.

A listening socket limits all connections, and the connections of each address, before it reads from them. At a limit,
the oldest idle connection is closed, so that idle connections do not keep callers out. If the limit for all connections
is reached, the address with the most connections loses one first. A new connection is refused only if every connection
under the limit is answering a request.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from osmosis_grpc.network.http.guard import certificate_owner
from osmosis_grpc.supervise import OnFailure, call_later, job
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the operating system keeps until the event loop accepts them."""
IN_ONE_PASS = 16
"""Connections that the event loop accepts before it does other work. So many may be open above the limit."""


def _always() -> bool:
    return True


class Accepted(socket.socket):
    """An accepted connection. `idle` returns whether it has no request in work."""

    __slots__ = ("_leave", "idle")

    def __init__(self, accepted: socket.socket, leave: Callable[["Accepted"], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.idle: Callable[[], bool] = _always
        self._leave = leave

    def end_handshake(self) -> None:
        """End the connection if its TLS handshake is not complete, so that HTTP does not know it yet."""
        if self.idle is _always:
            self.end()

    def end(self) -> None:
        """End the connection. The event loop then sees its end, and closes it."""
        self._leave(self)
        with suppress(OSError):  # the peer has ended it
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._leave(self)
        super().close()


class LimitedSocket(socket.socket):
    """A listening socket with at most `most` connections, and at most `most_of_one` from one address.

    The addresses of an IPv6 network of 64 bits count as one.
    """

    def __init__(self, family: int, most: int, most_of_one: int) -> None:
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only with this
        self._most = most
        self._most_of_one = most_of_one
        self._open: dict[str, dict[tuple[str, int], Accepted]] = {}
        self._log = Throttled(log)
        self.on_accept: Callable[[Accepted], object] = lambda connection: None
        """Called with each accepted connection."""

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Listen. The event loop passes IN_ONE_PASS, which is not a length for the operating system's queue."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises ConnectionAbortedError if it has to be refused."""
        accepted, place = super().accept()
        peer = (str(place[0]), int(place[1]))
        network = network_of(peer[0])
        if not self._make_room(network):
            accepted.close()
            raise ConnectionAbortedError("too many connections")
        connection = Accepted(accepted, lambda left: self._forget(network, peer, left))
        self._open.setdefault(network, {})[peer] = connection
        self.on_accept(connection)
        return connection, place

    def attach(self, peer: tuple[str, int], idle: Callable[[], bool]) -> None:
        """Set the function that says whether the connection of HOST, PORT has no request in work."""
        connection = self._open.get(network_of(peer[0]), {}).get(peer)
        if connection is not None:
            connection.idle = idle

    def _make_room(self, network: str) -> bool:
        """Return whether there is room for a connection of the network. It may close another one."""
        own = self._open.get(network, {})
        if len(own) >= self._most_of_one:
            return self._end_idle(own, f"{network} has {len(own)} {self._kind()}, the most of one address")
        count = sum(map(len, self._open.values()))
        if count < self._most:
            return True
        return self._end_idle(max(self._open.values(), key=len), f"there are {count} {self._kind()}")

    def _kind(self) -> str:
        return f"HTTP connections to port {self.getsockname()[1]}"

    def _end_idle(self, connections: dict[tuple[str, int], Accepted], problem: str) -> bool:
        for connection in connections.values():
            if connection.idle():
                self._log.warn(f"{problem}: the oldest idle one is closed for a new one")
                connection.end()
                return True
        self._log.warn(f"{problem}, all in use: a new one is refused; docs/deploy.md has the limits")
        return False

    def _forget(self, network: str, peer: tuple[str, int], left: Accepted) -> None:
        own = self._open.get(network, {})
        if own.get(peer) is left:
            del own[peer]
            if not own:
                del self._open[network]


def network_of(host: str) -> str:
    """Return the address of a caller; for IPv6 its network of 64 bits."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


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


MAX_HEAD = 64 * 1024
"""A request's head has at most this many bytes. What arrives in one piece with the end of the head is not counted."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses long request heads, and closes a connection whose request head does not arrive in time.

    Says to `listening` when it has no request.
    """

    head_seconds = HEAD_SECONDS
    _in_head = False
    _head_bytes = 0
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
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
                self._refuse_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def _refuse_head(self) -> None:
        if self._answering():  # the head of the next request has come while this one is answered
            self.transport.close()
        else:
            self.send_400_response("The head of the request is too long.")

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
    """ASGI middleware that refuses a request with two lengths, or with a coding that is not read here.

    It closes the connection after an unread body.
    """

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
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in scope["headers"]):
            refused = JSONResponse({"detail": "the only transfer coding here is chunked"}, 501, {"Connection": "close"})
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
