"""The agent of every scenario: one behaviour, written against what old and new contexts share.

The metadata of a rollout says what is special about it: `reward` (absent: none), and `raise` or
`error` with a text, after the reply of turn `at_turn` (0: before any chat). An error tells the
conversation so far, but not a `silent` one.
"""

from collections import Counter
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.tool_calls import (
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    serialize_tool_result,
)
from osmosis_grpc.protocol.errors import ToolArgumentError

NAME = "conformance"


async def add(a: float, b: float) -> float:
    return a + b


async def divide(a: float, b: float) -> float:
    return a / b


async def echo(text: str) -> str:
    return text


TOOLS = {tool.__name__: tool for tool in (add, divide, echo)}


def schema(name: str, kinds: dict[str, str]) -> dict[str, Any]:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


NUMBERS = {"a": "number", "b": "number"}
SCHEMAS = [schema("add", NUMBERS), schema("divide", NUMBERS), schema("echo", {"text": "string"})]


async def use(call: dict[str, Any]) -> dict[str, str]:
    """One tool call, whatever the model wrote into it."""
    try:
        call_id, name, arguments = get_tool_call_info(call)
    except ToolArgumentError as error:
        return create_tool_error_result(error.tool_call_id, "bad arguments")
    if name not in TOOLS:
        return create_tool_error_result(call_id, f"Unknown tool: {name}")
    try:
        return create_tool_result(call_id, serialize_tool_result(await TOOLS[name](**arguments)))
    except TypeError:
        return create_tool_error_result(call_id, "bad arguments")
    except ArithmeticError as error:
        return create_tool_error_result(call_id, str(error))


class Agent(RolloutAgentLoop):
    """As it is for a new server; an old server calls get_tools and run just so."""

    name = NAME

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        """How often it ran, by rollout id."""

    def get_tools(self, request: Any) -> list[dict[str, Any]]:
        return SCHEMAS

    async def run(self, ctx: Any) -> Any:
        request, metadata = ctx.request, ctx.request.metadata
        self.runs[request.rollout_id] += 1
        messages, tokens, finish_reason = list(request.messages), 0, "max_turns"
        if metadata.get("at_turn") == 0:
            return self.fail(ctx, messages)
        for turn in range(1, request.max_turns + 1):
            result = await ctx.chat(messages, **request.completion_params)
            messages.append(result.message)
            tokens += result.usage["completion_tokens"]
            if turn == metadata.get("at_turn"):
                return self.fail(ctx, messages)
            if tokens >= request.max_tokens_total:
                finish_reason = "max_tokens"
                break
            if not result.has_tool_calls:
                finish_reason = result.finish_reason
                break
            messages += await execute_tool_calls(result.tool_calls, use)
            for _call in result.tool_calls:
                ctx.record_tool_call(1.0)
        return ctx.complete(messages, finish_reason=finish_reason, reward=metadata.get("reward"))

    def fail(self, ctx: Any, messages: list[dict[str, Any]]) -> Any:
        metadata = ctx.request.metadata
        if "raise" in metadata:
            raise RuntimeError(metadata["raise"])
        return ctx.error(metadata["error"]) if metadata.get("silent") else ctx.error(metadata["error"], messages)
