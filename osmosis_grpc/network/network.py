"""The network of an agent server or a trainer. It makes servers and channels, and binds servers to addresses.

The simulator replaces it by a simulated network.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import grpc

from osmosis_grpc.network.channel_options import Options, default_connections, server_options
from osmosis_grpc.network.credentials import channel
from osmosis_grpc.network.forked_sockets import keep_from_children
from osmosis_grpc.network.free_ports import check_free
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls, Pems, ReloadedFiles, ServerTls, read_pems
from osmosis_grpc.supervise import OnFailure, child, job

START = job("link.start_server", OnFailure.RAISE)

_KEPT: WeakKeyDictionary[grpc.aio.Server, grpc.ServerCredentials] = WeakKeyDictionary()
"""The credentials of running servers. gRPC reads new certificates from the credentials, but keeps no reference to them.
"""


def listen(server: grpc.aio.Server, address: str, security: ServerSecurity) -> str:
    """Bind a server to HOST:PORT. Returns HOST:PORT with the bound port.

    Raises OSError if the port is in use or the host is not an address of this machine. Raises ValueError if the
    address is not HOST:PORT, if `security` is not enough for a public address, or if a TLS file cannot be used.
    """
    host, separator, port = address.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT, for example 127.0.0.1:60051")
    security.check_host(host)
    shown = f"[{host}]" if ":" in host else host
    check_free(host, int(port))
    try:
        if security.tls is None:
            bound = server.add_insecure_port(f"{shown}:{port}")
        else:
            _KEPT[server] = server_credentials(security.tls)
            bound = server.add_secure_port(f"{shown}:{port}", _KEPT[server])
    except RuntimeError as error:
        raise OSError(f"cannot listen on {shown}:{port}: gRPC says {error}") from error
    keep_from_children(server, bound)
    return f"{shown}:{bound}"


async def start(server: grpc.aio.Server) -> None:
    """Start a server. If this coroutine is cancelled, it still completes the start, and then stops the server.

    A cancelled server.start() would leave the server half started.
    """
    starting = child(START, server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        await server.stop(0)
        raise


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return credentials that read the files again when they change. Raises ValueError naming a bad file."""

    def read() -> Pems:
        return read_pems(tls.cert, tls.key, tls.client_ca)

    files = ReloadedFiles(tls.files, read)
    shown = files.now()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        newest = files.now()
        if newest is shown:
            return None
        shown = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        changed,  # type: ignore[arg-type] # None means no change
        require_client_authentication=tls.client_ca is not None,
    )


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.key is not None and pems.cert is not None  # noqa: PT018
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


class Network(Protocol):
    """Makes servers and channels with the interface of grpc.aio."""

    def server(self, connections: int | None = None, max_age: float | None = None) -> grpc.aio.Server:
        """Return a new server.

        `connections` is the most connections at once; by default what default_connections() returns. A connection that
        is older than `max_age` seconds gets GOAWAY.
        """

    def listen(self, server: grpc.aio.Server, address: str, security: ServerSecurity) -> str:
        """Bind a server to HOST:PORT. Returns HOST:PORT with the bound port. Raises OSError, ValueError."""

    def channel(self, target: str, tls: ClientTls | None, options: Options) -> grpc.aio.Channel:
        """Return a channel to HOST:PORT, or to an address in gRPC's notation. Raises ValueError naming a bad file."""

    async def resolve(self, name: str) -> Sequence[str]:
        """Return the IP addresses of a name. Raises OSError if it has none, or if the resolver does not answer."""


class GrpcNetwork:
    """The sockets of this machine, through grpc.aio."""

    listen = staticmethod(listen)
    channel = staticmethod(channel)

    def server(self, connections: int | None = None, max_age: float | None = None) -> grpc.aio.Server:
        """Return a new server of grpc.aio."""
        return grpc.aio.server(options=server_options(connections or default_connections(), max_age))

    async def resolve(self, name: str) -> Sequence[str]:
        """Return the IP addresses of a name, as this machine's resolver knows them. Raises OSError."""
        rows = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(row[4][0]) for row in rows))


GRPC: Network = GrpcNetwork()
