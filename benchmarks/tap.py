"""A TCP proxy that counts bytes."""

import asyncio
from typing import Any


class Tap:
    """Counts the bytes of all its routes in both directions, without the headers of TCP and IP."""

    def __init__(self) -> None:
        self.bytes = 0
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Tap":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for server in self._servers:
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def route(self, address: str) -> str:
        """Return an address that forwards to this one and counts the bytes."""
        host, _, port = address.rpartition(":")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            for source, sink in ((reader, far_writer), (far_reader, writer)):
                pump = asyncio.create_task(self._pump(source, sink))
                self._pumps.add(pump)
                pump.add_done_callback(self._pumps.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=4096)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def settled(self) -> int:
        """Wait until no more bytes pass, and return their number."""
        while True:
            before = self.bytes
            await asyncio.sleep(0.2)
            if self.bytes == before:
                return before

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(2**18):
                self.bytes += len(data)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


async def straight(address: str) -> str:
    """Return the address unchanged: the route without a tap."""
    return address
