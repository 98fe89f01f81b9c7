"""An agent that thinks between two chats, for servers on a Ray cluster."""

import asyncio

from osmosis_grpc.agent import RolloutAgentLoop


class Walker(RolloutAgentLoop):
    """Asks, thinks, asks again and completes. It may run again."""

    name = "walk"
    replayable = True

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages += [(await ctx.chat(messages)).message, {"role": "user", "content": "go on"}]
            await asyncio.sleep(ctx.request.metadata["think"] / 2)  # the agent thinks
        return ctx.complete(messages, reward=1.0)


agents = [Walker()]
