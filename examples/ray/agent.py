"""An agent that thinks for half a second between its chats. It may run again after its server was killed."""

import asyncio

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult


class Thinker(RolloutAgentLoop):
    """Asks twice, and gets a reward of 1."""

    name = "thinker"
    replayable = True
    tools = ()

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for question in ("Go on.", "Thank you."):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": question})
            await asyncio.sleep(0.5)  # its tools
        return ctx.complete(messages, reward=1.0)


agent_loop = Thinker()
