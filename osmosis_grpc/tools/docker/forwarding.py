"""Lets a container without a network reach some addresses of the server, and a list of allowed hosts.

The folder of a Forwarding has one Unix socket for each port, and is mounted into one container. A program in the
container listens on the ports, and forwards each connection to the socket (relays.py). So the container needs no
network, and this process checks each connection.
"""

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_grpc.supervise import OnFailure, Supervisor, child, job
from osmosis_grpc.tools.docker.host_proxy import Refused, asked_of_proxy
from osmosis_grpc.tools.docker.relays import PROXY_PORT
from osmosis_grpc.tools.sandbox import SandboxError

log = logging.getLogger(__name__)

FORWARD = job("tools.docker_forward", OnFailure.REPORT)
PASS_ON = job("tools.docker_pass_on", OnFailure.RAISE)
MOST = 1024
"""The limit of open connections of all containers together."""
MOST_OF_ONE = 128
"""The limit of open connections of one container. Further ones are closed."""
SHARE = 16
"""Each container may have this many connections, even if all containers together have MOST."""
PART = 64 * 1024
PREFIX = "osmosis-reach-"
LEFT_AFTER = 120.0
"""A folder without sockets is removed after this many seconds. A younger one may be unfinished."""
Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Open:
    """The connections of all containers."""

    count: int = 0


class Forwarding:
    """Forwards the connections of one container. Each has its own folder, so that none uses the others' share.

    Args:
        server_id: The name of the server, which is in the name of the folder.
        reach: Addresses such as 127.0.0.1:8080, each reached on its own port of the container's loopback.
        hosts: Names of hosts that the proxy allows, such as pypi.org or *.pythonhosted.org.
        supervisor: Owns the connections.
        together: Counts the connections of all containers.
    """

    def __init__(
        self, server_id: str, reach: Sequence[str], hosts: Sequence[str], supervisor: Supervisor, together: Open
    ) -> None:
        self._prefix = f"{PREFIX}{server_id}."
        self._hosts = hosts
        self._supervisor = supervisor
        self._servers: list[asyncio.Server] = []
        self._own = 0
        self._together = together
        self._addresses = {int(address.rpartition(":")[2]): address for address in reach}
        self.folder = Path()
        """The folder with the sockets. Known after open()."""

    @property
    def ports(self) -> list[int]:
        """The forwarded ports of the container. Each socket is named after its port."""
        return [*self._addresses, *([PROXY_PORT] if self._hosts else [])]

    async def open(self) -> None:
        """Make the sockets. Raises SandboxError."""
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=self._prefix))
            self.folder.chmod(0o711)
            for port, address in self._addresses.items():
                await self._listen(port, lambda reader, writer, to=address: self._to_address(to, reader, writer))  # type: ignore[misc]
            if self._hosts:
                await self._listen(PROXY_PORT, self._to_host)
        except OSError as error:
            await self.close()
            raise SandboxError(f"reach, hosts: the sockets cannot be made: {error}") from None

    async def close(self) -> None:
        """Remove the sockets. The supervisor ends the connections."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _listen(
        self, port: int, handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._own >= (SHARE if self._together.count >= MOST else MOST_OF_ONE):
                writer.close()
                return
            self._own += 1
            self._together.count += 1
            task = self._supervisor.start(FORWARD, lambda: _handled(handle, reader, writer))
            task.add_done_callback(lambda _: self._ended(writer))

        path = self.folder / str(port)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        path.chmod(0o666)
        self._servers.append(await asyncio.start_unix_server(connected, sock=listening))

    def _ended(self, writer: asyncio.StreamWriter) -> None:
        self._own -= 1
        self._together.count -= 1
        writer.close()

    async def _to_address(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address.rpartition(":")
        await _joined((reader, writer), await asyncio.open_connection(host.strip("[]"), int(port)), b"")

    async def _to_host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await asked_of_proxy(reader, self._hosts)
        except Refused as refused:
            log.info("a container may not connect to %s", refused.host)
            writer.write(refused.reply)
            await writer.drain()
            return
        try:
            other = await asyncio.open_connection(asked.host, asked.port)
        except OSError as error:
            failed = Refused("502 Bad Gateway", asked.host, f"{asked.host} cannot be reached: {type(error).__name__}")
            writer.write(failed.reply)
            await writer.drain()
            return
        writer.write(asked.reply)
        await _joined((reader, writer), other, asked.head)


def remove_left_over(server_id: str) -> None:
    """Remove folders of a server's earlier processes, at whose sockets no process listens. Blocks for a moment."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{server_id}.*"):
        with contextlib.suppress(OSError):  # it is gone, or belongs to another user
            sockets = list(folder.iterdir())
            young = not sockets and time.time() - folder.stat().st_mtime < LEFT_AFTER
            if not young and not any(map(_is_open, sockets)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_open(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trying:
        return trying.connect_ex(str(path)) == 0


async def _handled(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    with contextlib.suppress(OSError):  # the program has closed its side
        await handle(reader, writer)


async def _joined(one: Connected, other: Connected, head: bytes) -> None:
    """Copy bytes between two connections in both directions, until both have ended."""
    other[1].write(head)
    ways = {child(PASS_ON, _pump(one[0], other[1])), child(PASS_ON, _pump(other[0], one[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)  # if a side breaks, both end
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        other[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PART):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
