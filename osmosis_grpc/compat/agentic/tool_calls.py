"""Runs the tool calls of agents: errors become results with a type, and the agent goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.tool_calls import (
    CUT_CALL,
    answer_tool_calls,
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    note_error,
    tool_text,
)
from osmosis_grpc.protocol.errors import RolloutEndedError, ToolArgumentError, ToolUnavailable
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.outcome import clip, describe

ERROR_TYPES = ("unknown_tool", "bad_arguments", "timeout", "tool_error", "reply_cut")
"""How the text of a failed call begins, after "Error: "."""
Tools = Mapping[str, Any]
"""Tools by name. Each has `name`, `openai_schema()` and `run(arguments, context)`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call."""

    message: Message
    """The tool message."""
    error: str = ""
    """"TYPE: TEXT", with a type of ERROR_TYPES; empty if the call succeeded."""


async def run_calls(
    tools: Tools, calls: Sequence[Any], context: RolloutContext | None, *, most: int = 8, cut: bool = False
) -> list[ToolResult]:
    """Run calls in OpenAI's format, at most `most` at once. Return their results in the order of the calls.

    In a rollout, each call and its result are events. The message of a call that fails is "Error: TYPE: TEXT".
    With `cut`, all calls fail, because their reply was cut by its token limit.
    """
    errors: dict[int, str] = {}

    def failed(call: Any, call_id: str, text: str) -> Message:
        errors[id(call)] = text = clip(text)
        return create_tool_error_result(call_id, text)

    async def run(call: Any) -> Message:
        call_id = "unknown"
        try:
            call_id, name, arguments = get_tool_call_info(call, blank={})
            if cut:
                return failed(call, call_id, f"reply_cut: {CUT_CALL}")
            if name not in tools:
                known = ", ".join(tools) or "none"
                return failed(call, call_id, f"unknown_tool: there is no tool {name!r}; the tools are: {known}")
            return create_tool_result(call_id, tool_text(await tools[name].run(arguments, context), name))
        except (RolloutEndedError, ToolUnavailable):
            raise
        except ToolArgumentError as error:
            return failed(call, error.tool_call_id or call_id, f"bad_arguments: {describe(error)}")
        except TimeoutError as error:
            return failed(call, call_id, f"timeout: {describe(error)}")
        except Exception as error:
            return failed(call, call_id, f"tool_error: {type(error).__name__}: {describe(error)}")

    messages: list[Message] = []
    for begin in range(0, len(calls), most):
        messages += await answer_tool_calls(calls[begin : begin + most], run)
    return [ToolResult(message, errors.get(id(call), "")) for call, message in zip(calls, messages, strict=True)]


async def repeat_results(calls: Sequence[Any], results: Sequence[ToolResult]) -> list[ToolResult]:
    """Return recorded results of calls, without running the tools. Each call and its result are events."""
    recorded = {id(call): result for call, result in zip(calls, results, strict=True)}

    async def repeat(call: Any) -> Message:
        result = recorded[id(call)]
        if result.error:
            note_error("", result.error)
        return dict(result.message)

    await answer_tool_calls(calls, repeat)
    return list(results)
