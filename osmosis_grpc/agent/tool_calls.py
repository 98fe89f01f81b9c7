"""Helpers for agent loops that run tools."""

import asyncio
import contextlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from osmosis_grpc.agent.ports import Session, current_session
from osmosis_grpc.agent.tool_runs import CallOrigin, ToolRun, current_run, tool_watcher
from osmosis_grpc.protocol.errors import (
    InvalidArgument,
    RolloutEndedError,
    ToolArgumentError,
    ToolExecutionError,
    ToolUnavailable,
)
from osmosis_grpc.protocol.types import Message, events, jsontext
from osmosis_grpc.protocol.types.json_values import readable
from osmosis_grpc.protocol.types.jsontext import repaired
from osmosis_grpc.protocol.types.messages import copy_message
from osmosis_grpc.protocol.types.outcome import clip, describe, printable
from osmosis_grpc.protocol.types.stack_frames import own_lines, short_path
from osmosis_grpc.supervise import OnFailure, child, job

log = logging.getLogger(__name__)

TOOL_CALL = job("agent.tool_call", OnFailure.RAISE)

TOOL_TASK = "tool "
"""The name of a task that runs a tool is this prefix and the tool's name."""


@runtime_checkable
class RunnableTool(Protocol):
    """A tool that can be run, for example what `@tool` makes."""

    name: str

    async def run(self, arguments: Mapping[str, Any], context: Any) -> Any:
        """Return the result of a call with these arguments. `context` is the RolloutContext."""


class ToolRunnerNotAsyncError(TypeError):
    """The executor of execute_tool_calls is not async, so it would block every rollout of the process."""


def parse_tool_arguments(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as a dict. `arguments` is a JSON text or a dict.

    Raises ToolArgumentError for any other value. Agents show its text to the model, so it is that of the Osmosis SDK.
    """
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        raise ToolArgumentError(f"Expected str or dict arguments, got {type(arguments).__name__}")
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolArgumentError(f"Invalid JSON arguments: {error}") from error
    if not isinstance(parsed, dict):
        raise ToolArgumentError(f"Expected dict from JSON, got {type(parsed).__name__}")
    return parsed


def get_tool_call_info(tool_call: Any, *, blank: dict[str, Any] | None = None) -> tuple[str, str, dict[str, Any]]:
    """Return the id, function name and parsed arguments of a tool call.

    Args:
        tool_call: The call, in OpenAI's format. The id of one without an id is "unknown". Without the key `arguments`
            it has none.
        blank: Replaces arguments that are null or blank, which are otherwise errors.

    Raises:
        ToolArgumentError: The arguments are not a JSON object. It has the call's id and name.
    """
    call_id, name = names_of(tool_call)
    if not (isinstance(tool_call, Mapping) and tool_call.get("id") is not None):
        call_id = "unknown"
    function: Any = tool_call.get("function") if isinstance(tool_call, Mapping) else tool_call
    if function is not None and not isinstance(function, Mapping):
        raise ToolArgumentError("the call has no function with a name and arguments", call_id, name)
    arguments = function.get("arguments", {}) if function else {}
    if blank is not None and (arguments is None or (isinstance(arguments, str) and not arguments.strip())):
        arguments = blank
    try:
        return call_id, name, parse_tool_arguments(arguments)
    except ToolArgumentError as error:
        raise ToolArgumentError(str(error), call_id, name) from error


def create_tool_result(tool_call_id: str, content: str) -> dict[str, str]:
    """Return the tool message that answers a call.

    Args:
        tool_call_id: The id of the call.
        content: The result, as the model reads it.
    """
    text = repaired(content) if isinstance(content, str) else content  # type: ignore[redundant-expr]
    return {"role": "tool", "content": text, "tool_call_id": tool_call_id}


CUT_CALL = "the reply was cut by its token limit, so the tool was not run"


async def refuse_cut_call(call: Any) -> dict[str, str]:
    """Return the error for a call of a reply that was cut. Such a call may be incomplete."""
    return create_tool_error_result(get_tool_call_info(call, blank={})[0], CUT_CALL)


def create_tool_error_result(tool_call_id: str, error_message: str) -> dict[str, str]:
    """Return the tool message that reports an error to the model.

    Args:
        tool_call_id: The id of the call.
        error_message: The text, without a prefix.
    """
    note_error(tool_call_id, str(error_message))
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def note_error(tool_call_id: str, text: str = "") -> None:
    """Record that a tool failed, with the exception that is being handled, if any.

    Within execute_tool_calls the error belongs to the running call. Elsewhere the watcher gets the error at once.
    """
    run, watcher = current_run.get(), tool_watcher.get()
    if run is not None:
        run.error, run.error_text = sys.exception(), text or run.error_text
    elif watcher is not None:
        watcher(ToolRun(call_id=tool_call_id, error=sys.exception(), error_text=text))


def serialize_tool_result(result: Any) -> str:
    """Return a tool's result as a message's content, with the texts of the Osmosis SDK.

    A string stays unchanged. Any other value is converted to JSON as in `osmosis_grpc.protocol.types.json_values`:
    None is `null`, and non-ASCII characters are escaped. Raises InvalidArgument for NaN, infinity, and an object that
    cannot be converted and has no str() of its own.
    """
    made = readable(result, "result")
    return made if isinstance(made, str) else json.dumps(made)


def tool_text(result: Any, tool: str) -> str:
    """Return the result of a tool function as message content: a string unchanged, None as "", anything else as JSON.

    Raises InvalidArgument as serialize_tool_result() does; the error names the tool and the place.
    """
    if result is None:
        return ""
    made = readable(result, f"{tool}()")
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


async def execute_tool_calls(
    tool_calls: Iterable[Mapping[str, Any]] | None, executor: Callable[[Any], Awaitable[Any]]
) -> list[Message]:
    """Run all calls of one reply at the same time. Return their messages in the order of the calls.

    Each call and its return are events of the trajectory. The metrics count and time the calls.

    Args:
        tool_calls: The calls of the reply.
        executor: Awaited with each call; returns its tool message. If it returns nothing, the message is an error.

    Raises:
        TypeError: `executor` is not async.
        Exception: The first exception of a call. The other calls continue.
    """
    return await _gather(tool_calls, executor, raises=True)


async def answer_tool_calls(
    tool_calls: Iterable[Mapping[str, Any]], executor: Callable[[Any], Awaitable[Any]]
) -> list[Message]:
    """Do the same as execute_tool_calls, with an error message for a call that raises an exception."""
    return await _gather(tool_calls, executor, raises=False)


async def _gather(
    tool_calls: Iterable[Mapping[str, Any]] | None, executor: Callable[[Any], Awaitable[Any]], *, raises: bool
) -> list[Message]:
    tasks = [
        child(TOOL_CALL, _execute(call, executor, raises), name=f"{TOOL_TASK}{clip(names_of(call)[1], 80)}")
        for call in tool_calls or ()
    ]
    return list(await asyncio.gather(*tasks))


async def _execute(call: Any, executor: Callable[[Any], Awaitable[Any]], raises: bool) -> Message:
    session = current_session.get()
    call_id, _ = names_of(call)
    running = RunningToolCall(session, call)
    run, answered = running.run, running.run.call_id
    current_run.set(run)  # in this task alone
    failed: Exception | None = None
    in_tool = True
    try:
        asked = executor(call)
        if not inspect.isawaitable(asked):
            called = getattr(executor, "__name__", type(executor).__name__)
            text = f"{called} must be async def: execute_tool_calls awaits it, and it returned a {type(asked).__name__}"
            raise ToolRunnerNotAsyncError(text)
        returned = await asked
        in_tool = False
        message = _message(call_id or "unknown", returned)
        answered = str(message.get("tool_call_id") or "")
        if run.error_text and message.get("content") != f"Error: {run.error_text}":  # the agent handled the error
            run.error, run.error_text = None, ""
    except (RolloutEndedError, ToolRunnerNotAsyncError, ToolUnavailable):
        raise
    except Exception as raised:
        # The text of a KeyError is only the missing key.
        kind = f"{type(raised).__name__}: " if isinstance(raised, LookupError) else ""
        run.error, run.error_text = raised, clip(f"{kind}{describe(raised)}")
        run.described = _described(run.error_text, raised)
        _log_failed(run.name, raised)
        failed = raised if raises and in_tool else None
        message = create_tool_result(run.call_id, f"Error: {run.error_text}")
    finally:
        running.end(answered)
    running.returned(None if failed else message)
    if failed is not None:
        raise failed
    return message


_EXPECTED = (ToolArgumentError, ToolExecutionError, ValueError)
"""Wrong arguments of the model, and errors that tools raise on purpose. Their place does not matter."""


def _log_failed(name: str, error: Exception) -> None:
    """Log an exception of a tool with its place, unless it is expected."""
    if not isinstance(error, _EXPECTED):
        text = clip(f"{type(error).__name__}: {describe(error)}")
        log.info("the tool %s raised %s%s", printable(name), printable(text), _place(error))


def _place(error: BaseException) -> str:
    lines = own_lines(error, 1)
    return f" at {short_path(lines[0][0])}:{lines[0][1]}" if lines else ""


def _described(text: str, error: Exception) -> str:
    """Return the text of an error with its type and place, unless it is expected."""
    if isinstance(error, _EXPECTED):
        return text
    kind = f"{type(error).__name__}: "
    return f"{'' if text.startswith(kind) else kind}{text}{_place(error)}"


def _message(call_id: str, result: Any) -> Message:
    if result is None:
        raise ToolExecutionError("the tool returned nothing", call_id)
    is_message = isinstance(result, dict) and "role" in result
    message: Message = result if is_message else create_tool_result(call_id, serialize_tool_result(result))
    return copy_message(readable(message, "the tool's message"), "the tool's message", any_role=True)


def names_of(call: Any) -> tuple[str, str]:
    """Return a call's id and function name; empty texts if it has none."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    call_id = call.get("id") if isinstance(call, Mapping) else None
    return str(call_id or ""), str(name or "")


class RunningToolCall:
    """A tool call from its start to its end. The call begins when the object is made.

    `sample` is the sample whose reply has the call; by default it is found by the call's id. `session` is None outside
    of a rollout.
    """

    def __init__(self, session: Session | None, call: Any, *, sample: str = "") -> None:
        call_id, name = names_of(call)
        origin = session.calls.find(call, sample) if session else CallOrigin()
        if session and sample and not origin.sample and (newest := session.newest_chat(sample)):
            origin = CallOrigin(sample, newest)
        self.run = ToolRun(clip(call_id or "unknown"), clip(name), sample=origin.sample, chat_number=origin.chat_number)
        """What is known about the call. The code that runs the tool writes its error into it."""
        self._session = session
        self._watcher = tool_watcher.get()
        if session and isinstance(call, Mapping):
            with contextlib.suppress(InvalidArgument):  # a call that cannot be sent does not come from a model
                session.record(events.ToolCalled(jsontext.copy(dict(call), "tool_call"), *origin))
        began = time.monotonic()
        self._done = session.tool_running(self.run.name) if session else lambda call_id: time.monotonic() - began
        self._ended = False

    def end(self, answered: str | None = None) -> None:
        """End the time of the call. `answered` is the call id of its message, if it has one. Idempotent."""
        if not self._ended:
            self._ended = True
            self.run.latency = self._done(self.run.call_id if answered is None else answered)
            if self._watcher:
                self._watcher(self.run)

    def returned(self, message: Message | None) -> None:
        """End the call and record its message; None for a call without one. Raises InvalidArgument."""
        self.end()
        if self._session:
            run, sendable = self.run, readable(message, "message")
            self._session.record(
                events.ToolReturned(
                    tool_call_id=run.call_id,
                    name=run.name,
                    latency=run.latency or 0.0,
                    error=clip(run.described or run.error_text),
                    message=None if message is None else copy_message(sendable, "message", any_role=True),
                    sample=run.sample,
                    chat_number=run.chat_number,
                )
            )
