"""A running server that a person names, with the credentials for it. Its errors give advice for a command line."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.connection_errors import REFUSES
from osmosis_grpc.network.credentials import Credentials, channel
from osmosis_grpc.protocol.errors import CallError, NotFound
from osmosis_grpc.records.reading.source_port import NoRollout, SourceError
from osmosis_grpc.settings.option import split_host_port
from osmosis_grpc.trainer.rollout_client import RolloutClient

TIMEOUT = 10.0
"""Seconds that a call to a server may take."""
CONNECT = 1.0
"""Seconds for the question whether something listens at an address."""
LOST_AFTER = 120.0
"""Commands that follow events end if the server was away for this many seconds."""
_OPTIONS = {
    "pass its token as `token`": "{token}-file names the file of its token",
    "check the `token`, or the certificate": "check the token, or the certificate",
    "pass tls=ClientTls(ca=...)": "pass --tls, or --ca with its CA",
    "pass tls=ClientTls(cert=..., key=...)": "pass --cert and --key",
    "name its CA with ClientTls(ca=...)": "name its CA with --ca",
    "leave out `tls`": "leave out --tls",
    REFUSES: f"{REFUSES} with {{server}}",
}
"""Advice for programs, and the same for a command line with its names of --server and --token."""


@dataclass(frozen=True, slots=True)
class ChosenServer:
    """A running server, and what to show to it."""

    target: str
    credentials: Credentials
    why: str = ""
    """Begins the message about a server that cannot be reached. It says why the command asks this server."""
    names: tuple[str, str] = ("--server", "--token")
    """The options of the command that name the server and its token. --token-file ends with `-file`, likewise."""

    def __str__(self) -> str:
        return f"the server {self.target}"

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[RolloutClient]:
        """Yield a client of the server. Raises SourceError if the server refuses connections."""
        await self.check_listens()
        shown = self.credentials
        async with RolloutClient(
            self.target,
            timeout=TIMEOUT,
            lost_after=LOST_AFTER,
            token=shown.token,
            tls=shown.tls,
            insecure=shown.insecure,
        ) as client:
            yield client

    async def check_listens(self) -> None:
        """Raise SourceError if the server refuses connections."""
        if await asyncio.to_thread(refuses, self.target):
            raise SourceError(f"{self.why}{self} {self._advice(REFUSES)}")

    def channel(self) -> grpc.aio.Channel:
        """Return a channel to the server, which does not retry calls. Needs a running event loop."""
        return channel(self.target, self.credentials.tls, client_options(grpc__enable_retries=0))

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of calls into SourceError with the name of the server and advice."""
        try:
            yield
        except NotFound as error:
            raise NoRollout(f"{error} on {self}; list shows the rollouts that the token may see") from None
        except CallError as error:
            how = f"{', '.join(self.names)} and --tls say how to reach it"
            raise SourceError(f"{self.why}{self.text_of(error)}; {how}") from None

    def _advice(self, ours: str) -> str:
        server, token = self.names
        return _OPTIONS[ours].format(server=server, token=token)

    def text_of(self, error: CallError) -> str:
        """Return the text of an error with the name of the server."""
        text = str(error)
        for ours in _OPTIONS:
            text = text.replace(ours, self._advice(ours))
        if text.startswith("server "):
            return f"the {text}"
        return text if f"server {self.target}" in text else f"{self}: {text}"


def refuses(target: str) -> bool:
    """Return whether all addresses of HOST:PORT refuse connections, so nothing listens there.

    gRPC tries again for some seconds, because the server may be starting. A person who asks a server wants to know at
    once. An address without an answer after CONNECT seconds does not refuse: the network may be slow.
    """
    try:
        socket.create_connection(split_host_port(target), CONNECT, all_errors=True).close()
    except ExceptionGroup as failed:
        return failed.split(ConnectionRefusedError)[1] is None
    except (OSError, UnicodeError):  # the name is unknown, or malformed
        pass
    return False
