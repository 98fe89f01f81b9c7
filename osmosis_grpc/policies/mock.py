"""A mock model that solves arithmetic by calling tools.

The mock reads the expression in the last user message. It calls a tool for every operation whose operands it knows,
several at once if possible, and finally answers `#### VALUE`. The value is rounded to a whole number, so that not every
reward is 1. The tokens come from osmosis_grpc.policies.formula.
"""

import ast
import asyncio
import contextlib
import json
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from osmosis_grpc.agent.syntax_tree import parse_expression
from osmosis_grpc.agent.tool_calls import get_tool_call_info
from osmosis_grpc.policies.scripted import Reply, answer
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message
from osmosis_grpc.protocol.types.chat import call_prefix

_RUN = re.compile(r"[-+*/().\d\s]+")
_LONGEST = 1000  # characters of an expression
_TOOLS: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}

_Call = tuple[str, float, float]


class _Stuck(Exception):
    """The mock cannot go on: there is no expression, or a tool failed."""


class ToolCallingMock:
    """Calls add, subtract, multiply and divide with arguments a and b.

    Args:
        tokens: How many tokens each reply has; 8 to 32 by default.
        latency: How many seconds a reply takes.
        version: The weight version of the replies.
    """

    def __init__(self, *, tokens: int | None = None, latency: float = 0.0, version: str = "mock-1") -> None:
        self._tokens = tokens
        self._latency = latency
        self._version = version

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        if self._latency:
            await asyncio.sleep(self._latency)
        reply = next_reply(request.messages, call_prefix(request))
        return answer(request, reply, tokens=self._tokens, version=self._version)


def next_reply(messages: Sequence[Message], prefix: str) -> Reply:
    """Return the next reply: tool calls or the answer. The ids of the calls begin with `prefix`."""
    users = [i for i, m in enumerate(messages) if m.get("role") == "user" and isinstance(m.get("content"), str)]
    try:
        if not users:
            raise _Stuck("there is no question")
        wanted: dict[_Call, None] = {}
        value = _reduce(_parse(messages[users[-1]]["content"]), _results(messages[users[-1] :]), wanted)
    except _Stuck as stuck:
        return f"I cannot answer that: {stuck}."
    except RecursionError:
        return "I cannot answer that: the expression is too long for me."
    if wanted:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"{prefix}_{i}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"a": a, "b": b})},
                }
                for i, (name, a, b) in enumerate(wanted)
            ],
        }
    assert value is not None
    try:
        return f"The tools say {value:g}.\n#### {round(value)}"
    except (OverflowError, ValueError):
        return "I cannot answer that: the number is too large for me."


def _parse(question: str) -> ast.expr:
    """Parse the first run of digits and operators in a question."""
    runs = (run.strip(" .\n\t") for run in _RUN.findall(question))
    text = next((run for run in runs if re.search(r"\d\s*[)]*\s*[-+*/]", run)), "")
    if not text or len(text) > _LONGEST:
        raise _Stuck("there is no expression in the question")
    try:
        return parse_expression(text)
    except (SyntaxError, ValueError, MemoryError):
        raise _Stuck("the expression is broken") from None


def _results(messages: Sequence[Message]) -> dict[_Call, str]:
    asked: dict[str, _Call] = {}
    said: dict[_Call, str] = {}
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            with contextlib.suppress(ToolArgumentError):
                call_id, name, arguments = get_tool_call_info(call)
                a, b = arguments.get("a"), arguments.get("b")
                if isinstance(a, int | float) and isinstance(b, int | float):
                    asked[call_id] = (name, a, b)
        if message.get("role") == "tool" and message.get("tool_call_id") in asked:
            said[asked[message["tool_call_id"]]] = str(message.get("content"))
    return said


def _reduce(node: ast.expr, said: dict[_Call, str], wanted: dict[_Call, None]) -> float | None:
    """Return the value of an expression from the tools' results, or add the missing calls to `wanted`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        inner = _reduce(node.operand, said, wanted)
        return None if inner is None else _SIGNS[type(node.op)](inner)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _TOOLS:
        raise _Stuck("the expression is not only arithmetic")
    left, right = _reduce(node.left, said, wanted), _reduce(node.right, said, wanted)
    if left is None or right is None:
        return None
    call = (_TOOLS[type(node.op)], left, right)
    if call not in said:
        wanted[call] = None
        return None
    try:
        return float(said[call])
    except ValueError:
        raise _Stuck(f"the tool {call[0]} said {said[call]!r}") from None


_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
