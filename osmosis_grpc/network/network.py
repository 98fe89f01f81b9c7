"""The network of an agent server or a trainer. It makes servers and channels. The simulator has its own network."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

import grpc

from osmosis_grpc.network.channel_options import Options, server_options
from osmosis_grpc.network.connection_limit import default_connections
from osmosis_grpc.network.credentials import channel
from osmosis_grpc.network.listen import listen
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls


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
