"""Carries TCP to a server, and keeps all bytes that pass, for tests of what is on the wire."""

import asyncio
from contextlib import asynccontextmanager


class Tap:
    """What has passed. `address` takes connections."""

    def __init__(self):
        self.passed = bytearray()
        self.address = ""


@asynccontextmanager
async def tapped(target):
    """Yield a Tap in front of `target`, which is HOST:PORT."""
    tap, tasks = Tap(), set()

    async def pump(reader, writer):
        try:
            while data := await reader.read(65536):
                tap.passed += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def carry(reader, writer):
        tasks.add(asyncio.current_task())
        other, onward = await asyncio.open_connection(*target.rsplit(":", 1))
        await asyncio.gather(pump(reader, onward), pump(other, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    tap.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
