"""A small agent that calculates with tools. The demo runs it, and it is an example for your own agent."""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.agent.tools import (
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    serialize_tool_result,
)
from osmosis_grpc.errors import ToolArgumentError
from osmosis_grpc.types import Message, RolloutRequest


async def add(a: float, b: float) -> float:
    """a + b"""
    return a + b


async def subtract(a: float, b: float) -> float:
    """a - b"""
    return a - b


async def multiply(a: float, b: float) -> float:
    """a * b"""
    return a * b


async def divide(a: float, b: float) -> float:
    """a / b"""
    return a / b


TOOLS: dict[str, Callable[..., Awaitable[float]]] = {tool.__name__: tool for tool in (add, subtract, multiply, divide)}


def schema(name: str, description: str | None) -> dict[str, Any]:
    """Returns the schema of a tool with two numbers."""
    number = {"type": "number"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    function = {"name": name, "description": description or name, "parameters": parameters}
    return {"type": "function", "function": function}


async def execute(tool_call: dict[str, Any]) -> dict[str, str]:
    """Runs one tool call. A bad call returns an error message for the model."""
    try:
        call_id, name, arguments = get_tool_call_info(tool_call)
    except ToolArgumentError as error:
        return create_tool_error_result(error.tool_call_id, str(error))
    if name not in TOOLS:
        return create_tool_error_result(call_id, f"Unknown tool: {name}")
    try:
        return create_tool_result(call_id, serialize_tool_result(await TOOLS[name](**arguments)))
    except (TypeError, ArithmeticError) as error:
        return create_tool_error_result(call_id, str(error))


def compute_reward(messages: Sequence[Message], truth: str | None) -> float | None:
    """Returns 1.0 if the last assistant message has the true number after ####, else 0.0; None without a truth."""
    if truth is None:
        return None
    texts = [m["content"] for m in messages if m.get("role") == "assistant" and isinstance(m.get("content"), str)]
    found = re.search(r"####\s*(\S+)", texts[-1]) if texts else None
    try:
        return 1.0 if found and math.isclose(float(found[1]), float(truth), rel_tol=1e-9) else 0.0
    except ValueError:
        return 0.0


class CalculatorAgent(RolloutAgentLoop):
    """Chats, runs the tools that the model calls, and ends when the model calls none."""

    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> list[dict[str, Any]]:
        return [schema(name, tool.__doc__) for name, tool in TOOLS.items()]

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
            messages += await execute_tool_calls(result.tool_calls, execute)
        truth = ctx.request.label or ctx.request.metadata.get("ground_truth")
        return ctx.complete(messages, finish_reason=finish_reason, reward=compute_reward(messages, truth))


agent_loop = CalculatorAgent()
