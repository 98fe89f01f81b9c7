"""A small agent that calculates with tools. The demo runs it. Use it as an example for your own agent."""

import math
import re
from collections.abc import Sequence

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.tools import tool

__all__ = ["CalculatorAgent", "agent_loop", "compute_reward"]


@tool
async def add(a: float, b: float) -> float:
    """a + b"""
    return a + b


@tool
async def subtract(a: float, b: float) -> float:
    """a - b"""
    return a - b


@tool
async def multiply(a: float, b: float) -> float:
    """a * b"""
    return a * b


@tool
async def divide(a: float, b: float) -> float:
    """a / b"""
    return a / b


TOOLS = (add, subtract, multiply, divide)


def compute_reward(messages: Sequence[Message], truth: str | None) -> float | None:
    """Return 1.0 if the last assistant message has the true number after ####, else 0.0. Return None without a truth.

    Args:
        messages: The conversation.
        truth: The number, as a text.
    """
    if truth is None:
        return None
    texts = [m["content"] for m in messages if m.get("role") == "assistant" and isinstance(m.get("content"), str)]
    found = re.search(r"####\s*(\S+)", texts[-1]) if texts else None
    try:
        return 1.0 if found and math.isclose(float(found[1]), float(truth), rel_tol=1e-9) else 0.0
    except ValueError:
        return 0.0


class CalculatorAgent(RolloutAgentLoop):
    """Chats with the model and runs the tools that it calls, until it calls none."""

    name = "calculator"
    tools = TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        finish_reason, tokens = "max_turns", 0
        for _turn in range(ctx.request.max_turns):
            result = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(result.message)
            tokens += (result.usage or {}).get("completion_tokens", 0)
            if tokens >= ctx.request.max_tokens_total:
                finish_reason = "max_tokens"
                break
            if not result.has_tool_calls:
                finish_reason = result.finish_reason or "stop"
                break
            messages += await ctx.run_tools(result)
        truth = ctx.request.label or ctx.request.metadata.get("ground_truth")
        return ctx.complete(messages, finish_reason=finish_reason, reward=compute_reward(messages, truth))


agent_loop = CalculatorAgent()
