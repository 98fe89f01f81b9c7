"""An agent that runs until a test lets it go."""

import asyncio

from osmosis_grpc.agent import RolloutAgentLoop


class Waiter(RolloutAgentLoop):
    """Completes with reward 1.0 after `go` is set."""

    name = "waiter"

    def __init__(self):
        self.started, self.go = asyncio.Event(), asyncio.Event()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        self.started.set()
        await self.go.wait()
        return ctx.complete([], reward=1.0)
