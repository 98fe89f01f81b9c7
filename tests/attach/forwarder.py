"""Carries TCP from one address of this network namespace to another: python -m tests.attach.forwarder FROM TO.

What a sidecar or the end of a tunnel does: servers and trainers listen on loopback only.
"""

import asyncio
import sys


async def main(listen: str, target: str) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other, onward = await asyncio.open_connection(*target.split(":"))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, onward), pump(other, writer), return_exceptions=True)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(carry, *listen.split(":"))
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
