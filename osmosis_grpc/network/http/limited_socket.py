"""A listening socket that limits its connections, in all and for each address, before anything is read from them.

When a limit is reached, the oldest connection without a request in work is closed, so that idle connections keep no
caller out. A new connection is refused only when every connection of the limit answers a request. In all, the address
with the most connections loses first.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any

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
        """Listen. The event loop passes IN_ONE_PASS, which is no length for the operating system's queue."""
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
