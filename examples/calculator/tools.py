"""The tools: what they do, how a model sees them, and how a call is executed."""

from typing import Any

from osmosis_grpc.rollout.tools import (
    ToolArgumentError,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
)


async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def subtract(a: float, b: float) -> float:
    """Subtract the second number from the first."""
    return a - b


async def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


async def divide(a: float, b: float) -> float:
    """Divide the first number by the second."""
    return a / b


TOOLS = {tool.__name__: tool for tool in (add, subtract, multiply, divide)}

CALCULATOR_TOOL_SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.__doc__,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
    for name, tool in TOOLS.items()
]


async def execute_tool(tool_call: dict[str, Any]) -> dict[str, Any]:
    """One call. The model gets every error as text, so that it can try again."""
    try:
        call_id, name, arguments = get_tool_call_info(tool_call)
    except ToolArgumentError as error:
        return create_tool_error_result(error.tool_call_id, str(error))
    if name not in TOOLS:
        return create_tool_error_result(call_id, f"Unknown tool: {name}")
    try:
        return create_tool_result(call_id, str(await TOOLS[name](**arguments)))
    except (TypeError, ArithmeticError) as error:
        return create_tool_error_result(call_id, str(error))


async def execute_tools(tool_calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All calls of one reply, at the same time."""
    return await execute_tool_calls(tool_calls, execute_tool)
