"""Reads rollouts from a running server that the user names. Its errors give advice."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import grpc

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.credentials import Credentials, channel
from osmosis_grpc.protocol.errors import CallError, Hint, NotFound, Unavailable
from osmosis_grpc.protocol.types import Annotation, RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.server_info import DrainResult, ServerInfo
from osmosis_grpc.records.reading.source_port import Events, NoRollout, Source, SourceError
from osmosis_grpc.settings.option import split_host_port
from osmosis_grpc.supervise import SYSTEM, Backoff
from osmosis_grpc.trainer.rollout_client import RolloutClient

TIMEOUT = 10.0
"""How many seconds a call to a server may take."""
CONNECT = 1.0
"""How many seconds refuses() waits for a connection."""
LOST_AFTER = 120.0
"""Commands that follow events end when the server has been unreachable for this many seconds."""
_ADVICE = {
    Hint.SHOW_CREDENTIAL: "{token}-file FILE sends the token that is in a file",
    Hint.CHECK_CREDENTIAL: "check the token, or the certificate",
    Hint.USE_TLS: "pass --tls, or --ca with its CA",
    Hint.SHOW_CERTIFICATE: "if it asks for a client certificate, pass --cert and --key",
    Hint.NAME_CA: "name its CA with --ca",
    Hint.LEAVE_OUT_TLS: "leave out --tls, or start it with --tls-cert and --tls-key",
    Hint.START_SERVER: "start it, or name another with {server}",
}
"""Advice by the hint of an error, with placeholders for the names of the options."""


@dataclass(frozen=True, slots=True)
class ChosenServer:
    """A running server, and the credentials for it."""

    target: str
    credentials: Credentials
    why: str = ""
    """Why the command asks this server: the beginning of the message if it cannot be reached."""
    names: tuple[str, str] = ("--server", "--token")
    """The command's options for the server and its token."""

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
            refused = Unavailable(f"server {self.target} refuses connections", hint=Hint.START_SERVER)
            raise SourceError(f"{self.why}{self.text_of(refused)}")

    def channel(self) -> grpc.aio.Channel:
        """Return a channel to the server, which does not retry calls. Needs a running event loop."""
        return channel(self.target, self.credentials.tls, client_options(grpc__enable_retries=0))

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of calls to SourceError, with the name of the server and advice."""
        try:
            yield
        except NotFound as error:
            raise NoRollout(f"{error} on {self}; list shows the rollouts that the token may see") from None
        except CallError as error:
            how = "" if error.hint else f"; {', '.join(self.names)} and --tls say how to reach it"
            raise SourceError(f"{self.why}{self.text_of(error)}{how}") from None

    def text_of(self, error: CallError) -> str:
        """Return the text of an error with the name of the server and the command's options."""
        server, token = self.names
        if error.hint is Hint.SHOW_CREDENTIAL:
            return f"{self} refuses a caller without a credential; {_ADVICE[error.hint].format(token=token)}"
        text = error.with_advice(_ADVICE[error.hint].format(server=server, token=token) if error.hint else "")
        if text.startswith("server "):
            return f"the {text}"
        return text if f"server {self.target}" in text else f"{self}: {text}"


def refuses(target: str) -> bool:
    """Return whether all addresses of HOST:PORT refuse connections, so that nothing listens there.

    gRPC itself would retry for some seconds before it reports this. An address that does not answer within CONNECT
    seconds does not count as refusing, because the network may be slow.
    """
    try:
        socket.create_connection(split_host_port(target), CONNECT, all_errors=True).close()
    except ExceptionGroup as failed:
        return failed.split(ConnectionRefusedError)[1] is None
    except (OSError, UnicodeError):  # the host name is unknown or malformed
        pass
    return False


class ServerSource(Source):
    """Reads the rollouts of the token's owner from a running server."""

    def __init__(self, server: ChosenServer, on_connected: Callable[[], None] | None = None) -> None:
        """Read from a server. `on_connected` is called when the server accepts connections."""
        self.where = str(server)
        self._server = server
        self._on_connected = on_connected
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Source":
        self._client = await self._stack.enter_async_context(self._server.client())
        if self._on_connected is not None:
            self._on_connected()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """See Source."""
        with self._server.explained():
            return await self._client.page(where, token, limit=limit, newest_first=newest_first)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        with self._server.explained():
            return await self._client.get(rollout_id, attempt)

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        with self._server.explained():
            known = await self._client.get(rollout_id, attempt)
            last = known.last_event_number
            if not follow and after >= last:
                return
            stream = self._client.events(rollout_id, after=after, attempt=known.attempt)
            async with aclosing(stream) as found:
                async for event in found:
                    yield event
                    if not follow and event.event_number >= last:
                        return

    async def annotate(self, rollout_id: str, attempt: int, annotation: Annotation) -> bool:
        """See Annotator."""
        with self._server.explained():
            return (await self._client.annotate(rollout_id, annotation, attempt=attempt))[1]

    async def server_info(self) -> ServerInfo:
        """Return the version, the limits and the load of the server. Raises SourceError."""
        with self._server.explained():
            return await self._client.info()

    async def drain(self) -> DrainResult:
        """Let the server finish its rollouts and accept no new ones. Raises SourceError."""
        with self._server.explained():
            return await self._client.drain()

    async def all_events(self) -> Events:
        """See Source."""
        cursor, answered, backoff = "", time.monotonic(), Backoff(0.25, 5.0, system=SYSTEM)
        while True:
            with self._server.explained():
                try:
                    async with aclosing(self._client.all_events(cursor, from_now=not cursor)) as found:
                        async for position, event in found:
                            cursor = position
                            answered = time.monotonic()
                            backoff.reset()
                            if event is not None:
                                yield event
                except Unavailable as error:
                    if not cursor or not error.retryable or time.monotonic() - answered > LOST_AFTER:
                        raise
            await asyncio.sleep(backoff.next())
