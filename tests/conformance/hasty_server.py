"""This project's server with the agent `conformance` and short times, so that cases of silence end soon.

`python -m tests.conformance.hasty_server [HOST:PORT]` dials a trainer at HOST:PORT. It prints its own address as JSON.
"""

import asyncio
import json
import sys

from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.conformance import ConformanceAgent

HASTY = ServerConfig(chat_silence=3, heartbeat_interval=1, heartbeat_timeout=4)


async def main() -> None:
    async with AgentServer([ConformanceAgent()], port=0, connect=sys.argv[1:], config=HASTY) as server:
        print(json.dumps({"grpc": server.address}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
