"""Agents that break the server's process they run in: its journal's thread, its HTTP server or its gRPC server."""

import asyncio
import gc

import grpc
import uvicorn

from osmosis_grpc import supervise
from osmosis_grpc.agent import RolloutAgentLoop


def journal():
    supervise.inject("journal.commit", MemoryError("in the journal's thread"))


def http():
    for server in [thing for thing in gc.get_objects() if isinstance(thing, uvicorn.Server)]:
        server.should_exit = True


def rpc():
    servers = [thing for thing in gc.get_objects() if isinstance(thing, grpc.aio.Server)]
    dying.extend(asyncio.get_running_loop().create_task(server.stop(0)) for server in servers)


dying: list[asyncio.Task] = []


class Breaks(RolloutAgentLoop):
    """Breaks a part, and waits for ever."""

    name = "breaks"

    def __init__(self, part):
        self.name, self.part = part.__name__, part

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        self.part()
        while True:
            ctx.log_event("still there")
            await asyncio.sleep(0.05)  # an event now and then


agents = [Breaks(journal), Breaks(http), Breaks(rpc)]
