"""Helpers for agent loops that run tools."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from osmosis_grpc.agent.current import current_session
from osmosis_grpc.agent.ports import Session
from osmosis_grpc.errors import InvalidArgument, RolloutEndedError, ToolArgumentError, ToolExecutionError
from osmosis_grpc.types import Message, events, jsontext
from osmosis_grpc.types.completion import clip, describe
from osmosis_grpc.types.messages import copy_message


def get_tool_call_info(tool_call: Any) -> tuple[str, str, dict[str, Any]]:
    """The id, function name and parsed arguments of a tool call.

    Raises ToolArgumentError, which carries the call's id and name, when the arguments are not
    a JSON object. Empty arguments are an empty object.
    """
    call_id, name = _names(tool_call)
    function: Any = tool_call.get("function") if isinstance(tool_call, Mapping) else tool_call
    if function is not None and not isinstance(function, Mapping):
        raise ToolArgumentError("the call has no function with a name and arguments", call_id, name)
    arguments = function.get("arguments") if function else None
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return call_id, name, {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            problem = f"the arguments of {name or 'a tool'} are not JSON: {error}"
            raise ToolArgumentError(problem, call_id, name) from error
    if not isinstance(arguments, dict):
        raise ToolArgumentError(f"the arguments of {name or 'a tool'} are not a JSON object", call_id, name)
    return call_id, name, arguments


def create_tool_result(tool_call_id: str, content: str) -> dict[str, str]:
    """The tool message that answers a call."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> dict[str, str]:
    """The tool message that tells the model what went wrong."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """A tool's return value as a message's content: text as it is, everything else as JSON."""
    if result is None:
        return ""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


async def execute_tool_calls(
    tool_calls: Iterable[Mapping[str, Any]], executor: Callable[[Any], Awaitable[Any]]
) -> list[Message]:
    """Run all calls of one reply at the same time; their messages in the calls' order.

    `executor` is awaited with each call and returns its tool message. A call that raises or
    returns nothing becomes an error message of its own, and the others' results stay. Each
    call and its return are told as trajectory events; ctx.record_tool_call is what the metrics count.
    """
    return list(await asyncio.gather(*(_execute(call, executor) for call in tool_calls)))


async def _execute(call: Any, executor: Callable[[Any], Awaitable[Any]]) -> Message:
    session = current_session.get()
    call_id, name = _names(call)
    call_id = call_id or "unknown"
    if session:
        _tell_call(session, call)
    done = session.tool_running(clip(name)) if session else None
    began = time.monotonic()
    error = ""
    try:
        message = _message(call_id, await executor(call))
    except RolloutEndedError:
        raise
    except Exception as raised:
        error = clip(describe(raised))
        message = create_tool_error_result(clip(call_id), error)
    finally:
        if done:
            done()
    if session:
        session.record(events.ToolReturned(
            tool_call_id=clip(call_id), name=clip(name), latency=time.monotonic() - began, error=error,
            message=copy_message(message, "message"),
        ))  # fmt: skip
    return message


def _tell_call(session: Session, call: Any) -> None:
    """Record a call. One that cannot be sent came from no model; there is nothing to tell."""
    if isinstance(call, Mapping):
        with contextlib.suppress(InvalidArgument):
            session.record(events.ToolCalled(jsontext.copy(dict(call), "tool_call")))


def _names(call: Any) -> tuple[str, str]:
    """A call's id and function name, as far as it has them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    call_id = call.get("id") if isinstance(call, Mapping) else None
    return str(call_id or ""), str(name or "")


def _message(call_id: str, result: Any) -> Message:
    """What an executor returned as the message that answers the call. Raises when it cannot be sent."""
    if result is None:
        raise ToolExecutionError("the tool returned nothing", call_id)
    whole = isinstance(result, dict) and "role" in result
    message: Message = result if whole else create_tool_result(call_id, serialize_tool_result(result))
    copy_message(message, "the tool's message")
    return message
