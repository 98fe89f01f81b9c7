"""Agent loops that talk for a while: `python -m osmosis_grpc.serve -m tests.attach.agents:agents`."""

import asyncio
import random
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.protocol.types import RolloutRequest

ASKED = "please go on, said the agent"
"""Stands in every chat."""
ENDED = "finished-as-the-agent-wanted"
"""The finish reason: stands in every outcome."""
TOOL = {"type": "function", "function": {"name": "nod", "parameters": {"type": "object", "properties": {}}}}


class Talker(RolloutAgentLoop):
    """Chats `turns` times, thinks for at most `think` seconds after each reply, and leaves."""

    name = "talker"

    def get_tools(self, request: RolloutRequest) -> list[dict[str, Any]]:
        return [TOOL]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        turns, think = ctx.request.metadata.get("turns", 3), ctx.request.metadata.get("think", 0.02)
        messages = list(ctx.request.messages)
        for turn in range(1, turns + 1):
            result = await ctx.chat(messages)
            messages += [result.message, {"role": "user", "content": f"{ASKED}: {turn}"}]
            await asyncio.sleep(random.uniform(think / 2, think))  # the agent thinks
        return ctx.complete(messages, finish_reason=ENDED, reward=float(turns))


agents = [Talker()]
