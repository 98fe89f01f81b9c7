"""Finds the tools that a configuration names, makes tools from authors' objects, and runs calls.

Each rollout gets its own tools. The error of a call becomes a result with an error type, and the agent continues.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
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
from osmosis_grpc.compat.agentic.older_options import Renamed, split, with_older
from osmosis_grpc.compat.agentic.older_tools import NamedTool, instance_tool
from osmosis_grpc.protocol.errors import (
    InvalidArgument,
    RolloutEndedError,
    ToolArgumentError,
    ToolExecutionError,
    ToolUnavailable,
)
from osmosis_grpc.protocol.types import Message, ToolDict
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.tools import Tool
from osmosis_grpc.tools.base_tool import BaseTool, ToolsOfTrajectory
from osmosis_grpc.tools.library import MAKERS
from osmosis_grpc.tools.sandbox import LocalSandbox, Sandbox

ERROR_TYPES = ("unknown_tool", "bad_arguments", "timeout", "tool_error", "reply_cut")
"""The types of errors. A failed call has the text "Error: TYPE: TEXT"."""
Tools = Mapping[str, Any]
"""Tools by name. Each has `name`, `openai_schema()` and `run(arguments, context)`."""
MakeSandbox = Callable[[], Sandbox]
opened_tools: ContextVar[dict[str, Any] | None] = ContextVar("opened_tools", default=None)
"""The tools of this task's rollout, if its agent implements run_trajectory()."""
_registered: dict[str, Callable[..., Any]] = {}


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

    Within a rollout, each call and its result are recorded as events. A failed call has the text "Error: TYPE: TEXT".
    With `cut`, all calls fail, because the token limit cut their reply.
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
    """Return saved results of calls without running the tools. Each call and its result are recorded as events."""
    recorded = {id(call): result for call, result in zip(calls, results, strict=True)}

    async def repeat(call: Any) -> Message:
        result = recorded[id(call)]
        if result.error:
            note_error("", result.error)
        return dict(result.message)

    await answer_tool_calls(calls, repeat)
    return list(results)


def as_tool(given: Any, name: str = "", field: str = "") -> Any:
    """Return a tool with `name`, `openai_schema()` and `run(arguments, context)`. Errors name it as `field`.

    `given` is a tool made with `@tool`, a BaseTool or its class, an object with execute() or execute_tool(), or a
    function; methods and functions are sync or async. Raises InvalidArgument.
    """
    if isinstance(given, BaseTool) or (isinstance(given, type) and issubclass(given, BaseTool)):
        return StatefulTool(given, name)
    if hasattr(given, "openai_schema") and hasattr(given, "run"):
        return given if name in ("", given.name) else Renamed(given, name)
    if isinstance(given, NamedTool):
        raise InvalidArgument(field or f"tools.{name}", f"{given!r} works only in a rollout; pass it to set_tools()")
    if callable(getattr(given, "execute_tool", None)):
        return StatefulTool(instance_tool(given), name)
    function = given if inspect.isroutine(given) else getattr(given, "execute", None)
    if not callable(function):
        raise InvalidArgument(field or f"tools.{name}", f"{given!r:.60} is not a function, and has no method execute")
    own_name = name or getattr(given, "name", "") or getattr(function, "__name__", "")
    about = getattr(given, "description", "") or inspect.getdoc(function) or inspect.getdoc(type(given)) or ""
    return Tool(function, name=own_name, description=str(about), untyped=True)


class StatefulTool:
    """A BaseTool as its agent lists it, with its schema. open_stateful() makes the tool of a trajectory from it.

    A class makes a new object for each trajectory. An object serves all trajectories.
    """

    def __init__(self, given: BaseTool | type[BaseTool], name: str) -> None:
        self._given = given
        shown = given() if isinstance(given, type) else given
        self._shown = shown.as_tool(name)
        self.name = self._shown.name

    def openai_schema(self) -> ToolDict:
        """Return the schema in OpenAI's format."""
        return self._shown.openai_schema()

    def of_trajectory(self) -> BaseTool:
        """Return the object for a trajectory."""
        return self._given() if isinstance(self._given, type) else self._given

    async def run(self, arguments: Mapping[str, Any], context: Any = None) -> Any:
        """Raise ToolExecutionError, because no trajectory has created the tool."""
        raise ToolExecutionError(f"the tool {self.name} belongs to a rollout, and none runs", "", self.name)


async def open_stateful(
    tools: Mapping[str, Any], trajectory_id: str, stack: AsyncExitStack
) -> ToolsOfTrajectory | None:
    """Create the stateful tools among `tools` for a trajectory, or return None without any. `stack` releases them."""
    stateful = {name: each.of_trajectory() for name, each in tools.items() if isinstance(each, StatefulTool)}
    return await stack.enter_async_context(ToolsOfTrajectory(trajectory_id, stateful)) if stateful else None


def as_tools(given: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return tools by name. Raises InvalidArgument for two tools with one name, and if `given` is no dict or list."""
    if isinstance(given, Mapping):
        return {name: as_tool(each, name) for name, each in given.items()}
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise InvalidArgument("tools", f"is a {kind}; pass a list of tools, or an object of names and tools")
    made = [as_tool(each, field=f"tools[{index}]") for index, each in enumerate(given)]
    tools = {each.name: each for each in made}
    if len(tools) < len(made):
        raise InvalidArgument("tools", "two tools have the same name")
    return tools


def named_tools(given: Mapping[str, Any] | Iterable[Any]) -> tuple[dict[str, NamedTool], Any]:
    """Split tools into NamedTools, by name, and the others."""
    if isinstance(given, Mapping):
        named = {name: each for name, each in given.items() if isinstance(each, NamedTool)}
        return named, {name: each for name, each in given.items() if name not in named}
    if not isinstance(given, Iterable):
        return {}, given
    listed = list(given)
    named = {each.kind: each for each in listed if isinstance(each, NamedTool)}
    return named, [each for each in listed if not isinstance(each, NamedTool)]


def register_tool(name: Any, make: Any = None, tool_name: str | None = None) -> None:
    """Register a tool for configurations.

    Call register_tool(NAME, MAKE), or register_tool(CLASS, OPTIONS, NAME) as in the library. If `make` has a parameter
    `sandbox`, it gets the sandbox of the rollout.

    Args:
        name: The name of the tool, or its class.
        make: A function make(**options) that returns the tool, see as_tool(). For a class, options that it always gets.
        tool_name: The name for a class; by default the one in its schema.

    Raises:
        ValueError: The name is already registered, or `make` is not callable.
    """
    if isinstance(name, type):
        cls, fixed = name, dict(make or {})
        name = tool_name or as_tool(cls(fixed) if fixed else cls()).name

        def make(**options: Any) -> Any:
            return cls({**fixed, **options}) if fixed or options else cls()

    if not callable(make):
        raise ValueError("make: is not callable; pass a function that returns the tool")
    if name in list_tools():
        raise ValueError(f"name: the tool {name!r} is registered already")
    _registered[name] = make


def register_tool_instance(tool: Any, name: str | None = None) -> None:
    """Register one object for configurations. All rollouts share it.

    Args:
        tool: The tool, see as_tool().
        name: Its name; by default the one in its schema.

    Raises:
        ValueError: The name is already registered.
    """
    register_tool(name or as_tool(tool).name, lambda: tool)


def list_tools() -> list[str]:
    """Return the names of the tools that a configuration can name, sorted."""
    return sorted({*MAKERS, *_registered})


class Toolbox:
    """The tools that a configuration names, with options. Raises InvalidArgument, which names the tool or option."""

    def __init__(
        self, config: Mapping[str, Mapping[str, Any]] | None, named: Mapping[str, NamedTool] | None = None
    ) -> None:
        self._config = {name: (name, options) for name, options in (config or {}).items()}
        self._config |= {name: (each.kind, each.options) for name, each in (named or {}).items()}
        for kind, options in self._config.values():
            _check(kind, options)
        self.needs_sandbox = any("sandbox" in _parameters(kind) for kind, _ in self._config.values())
        self.tools = self.make(LocalSandbox() if self.needs_sandbox else None)
        """The tools by name, for their schemas. Tools that need a sandbox cannot run here."""

    def make(self, sandbox: Sandbox | None) -> dict[str, Any]:
        """Return the tools by name, for one rollout."""
        return {name: _make(name, kind, options, sandbox) for name, (kind, options) in self._config.items()}

    async def open(self, stack: AsyncExitStack, make_sandbox: MakeSandbox) -> tuple[dict[str, Any], Sandbox | None]:
        """Return the tools of one rollout, and its sandbox, or None if no tool needs one. `stack` closes the sandbox.

        Raises SandboxError if the sandbox cannot be started.
        """
        sandbox = await stack.enter_async_context(make_sandbox()) if self.needs_sandbox else None
        return self.make(sandbox), sandbox


def _maker(name: str) -> Callable[..., Any]:
    return _registered[name] if name in _registered else MAKERS[name]


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_maker(name)).parameters


def _check(name: str, options: Mapping[str, Any]) -> None:
    field = f"tools_config.{name}"
    if name not in list_tools():
        raise InvalidArgument(field, f"is not a tool; the tools are {', '.join(list_tools())}")
    parameters = _parameters(name)
    known = [each for each in parameters if each != "sandbox"]
    own, _ = split(name, options)
    for option in own:
        if option not in known and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            raise InvalidArgument(f"{field}.{option}", f"is not an option; the tool has {', '.join(known) or 'none'}")


def _make(name: str, kind: str, options: Mapping[str, Any], sandbox: Sandbox | None) -> Any:
    needed = {"sandbox": sandbox} if "sandbox" in _parameters(kind) else {}
    own, older = split(kind, options)
    try:
        return with_older(as_tool(_maker(kind)(**needed, **own), name), kind, older)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"tools_config.{name}", str(error)) from None
