"""The agent loop that the benchmarks host: `python -m osmosis_grpc.serve -m benchmarks.work:agent_loop`."""

from typing import Any

from benchmarks.script import result
from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult


class Turns(RolloutAgentLoop):
    """Asks for `max_turns` replies, and adds one message after each but the last."""

    name = "turns"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for turn in range(ctx.request.max_turns):
            if turn:
                messages.append(result())
            reply = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(reply.message)
        return ctx.complete(messages, reward=1.0)


agent_loop = Turns()
