"""Checks an agent loop before it runs, and reports all problems at once.

HINTS has a hint for each code. Only the command line reports NOT_AN_AGENT_LOOP and DUPLICATE_NAME.
"""

import asyncio
import contextlib
import inspect
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from osmosis_grpc.agent.loop import RolloutAgentLoop, name_problem
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.runnable import await_tools, must_wait
from osmosis_grpc.agent.schema_keys import misspelt_keys
from osmosis_grpc.agent.tool_result_types import result_problem
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisRolloutError
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.protocol.types.stack_frames import own_lines
from osmosis_grpc.protocol.types.tool_dicts import plain_tool

Severity = Literal["error", "warning"]
Place = tuple[str | None, int | None]
"""A file and a line, counted from 1; both None without a source."""

GET_TOOLS_TIMEOUT = 10.0
"""Timeout in seconds of an async get_tools. A server has the same timeout."""

REQUEST = RolloutRequest.unchecked(
    rollout_id="validate", messages=[{"role": "user", "content": "What is (2 + 3) * 4?"}]
)
"""The request that get_tools gets."""

HINTS = {
    "MISSING_NAME": 'give the class a name: name = "my-agent"',
    "EMPTY_NAME": "write the name that trainers are to call the agent by",
    "INVALID_NAME_TYPE": "make `name` a str of 1 to 256 characters",
    "MISSING_TOOL_TYPE": 'add "type": "function" to the tool',
    "UNKNOWN_TOOL_TYPE": 'set "type" to "function"',
    "MISSING_FUNCTION": 'add "function": {"name": ..., "description": ..., "parameters": ...} to the tool',
    "INVALID_FUNCTION_TYPE": 'make "function" a dict with name, description and parameters',
    "MISSING_FUNCTION_NAME": 'add the "name" that the model calls the function by',
    "INVALID_FUNCTION_NAME": "make the function's name a str that is not blank",
    "UNUSUAL_FUNCTION_NAME": "use 1 to 64 ASCII letters, digits, _ and - for the name: model servers refuse others",
    "MISSPELT_KEY": "correct the key; an unknown key is sent as it is, and model servers ignore it",
    "MISSING_FUNCTION_DESCRIPTION": "say in a sentence what the function does; the model chooses by it",
    "INVALID_PARAMETERS_TYPE": 'make "parameters" a JSON Schema: {"type": "object", "properties": {...}}',
    "PARAMETERS_TYPE_NOT_OBJECT": 'set the "type" of "parameters" to "object"',
    "INVALID_TOOL_TYPE": "write @tool above the function, or make the tool a schema or a dict of plain JSON values",
    "DUPLICATE_TOOL_NAME": "give each tool a name of its own, for example with @tool(name=...)",
    "RESULT_WITHOUT_JSON": "return a dict, a list, a number, a string, a pydantic model or a dataclass",
    "GET_TOOLS_EXCEPTION": "make get_tools(self, request) return for any request; what it raises refuses the rollout",
    "GET_TOOLS_RETURNS_NONE": "return [] to say that there are no tools",
    "GET_TOOLS_INVALID_TYPE": "return a list of tools",
    "GET_TOOLS_NOT_AWAITED": "validate outside of the event loop: asyncio.to_thread(validate_agent_loop, agent_loop)",
    "MISSING_GET_TOOLS_METHOD": "add a method get_tools(self, request) that returns a list of tools",
    "MISSING_RUN_METHOD": "add a method: async def run(self, ctx)",
    "RUN_NOT_CALLABLE": "make `run` a method: async def run(self, ctx)",
    "RUN_NOT_ASYNC": "write async def run(self, ctx) without yield, and end it with return ctx.complete(...)",
    "AGENT_INIT_FAILED": "give every parameter of __init__ a default, or name an instance in place of the class",
    "NOT_AN_AGENT_LOOP": "derive it from RolloutAgentLoop or AgentWorkflow; serve a BaseAgent as agent_runnable(...)",
    "DUPLICATE_NAME": "give each agent loop a name of its own; trainers choose by it",
}
"""Code to a hint what to do about a finding with this code."""

WARNINGS = frozenset(
    {
        "MISSING_FUNCTION_DESCRIPTION",
        "GET_TOOLS_RETURNS_NONE",
        "GET_TOOLS_NOT_AWAITED",
        "UNUSUAL_FUNCTION_NAME",
        "MISSPELT_KEY",
        "RESULT_WITHOUT_JSON",
    }
)
"""The codes of problems with which an agent still works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an agent loop."""

    code: str
    message: str
    """The problem, on one line."""
    hint: str = ""
    """What to do about it, on one line."""
    file: str | None = None
    """The file of the class or the method; None without a source."""
    line: int | None = None
    """Counted from 1; None without a source."""
    severity: Severity = "error"

    @property
    def field(self) -> str | None:
        """None, because the message names the field. The Osmosis SDK has the attribute."""
        return None

    @property
    def details(self) -> dict[str, Any] | None:
        """None. The Osmosis SDK has the attribute."""
        return None

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The name of an agent loop and all findings about it."""

    agent_name: str | None
    """None if it has no usable name."""
    findings: tuple[Finding, ...] = ()
    tool_count: int = 0
    """The number of checked tools; 0 if get_tools gave no list."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with which the agent does not work."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings with which the agent works."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def valid(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        """Raise AgentLoopValidationError if there is an error; warnings do not count."""
        if not self.valid:
            raise AgentLoopValidationError(self)


class AgentLoopValidationError(OsmosisRolloutError):
    """An agent loop has errors. The text has one line for each error, with the hint."""

    def __init__(self, result: ValidationResult) -> None:
        self.result, self.errors = result, result.errors
        lines = "".join(f"\n  {error.code}: {error.message} ({error.hint})" for error in self.errors)
        super().__init__(f"agent loop {result.agent_name or 'without a name'} is not valid:{lines}")


def validate_agent_loop(agent_loop: object, request: RolloutRequest | None = None) -> ValidationResult:
    """Return all problems of an agent loop, or of any other object. Raises nothing.

    A class is checked and then called without arguments. get_tools is called once with `request`, by default REQUEST,
    unless the class cannot be called. run is not called. asyncio.run runs an async get_tools. Within a running event
    loop this is impossible, so the warning GET_TOOLS_NOT_AWAITED says that the tools were not checked.
    """
    cls = agent_loop if isinstance(agent_loop, type) else type(agent_loop)
    name = _attribute(agent_loop, "name")
    problem = name_problem(name)
    findings = [_finding(problem[0], f"{cls.__name__}: {problem[1]}", cls)] if problem else []
    instance: object | None = agent_loop
    if isinstance(agent_loop, type):
        instance, failed = _instance(agent_loop)
        findings += failed
    tools, found = _get_tools(agent_loop, instance, cls, request or REQUEST)
    findings += found
    findings += _run(agent_loop, cls)
    return ValidationResult(None if problem else str(name), tuple(findings), len(tools))


def make(code: str, message: str, place: Place) -> Finding:
    """Return a finding, with its hint from HINTS."""
    return Finding(code, message, HINTS[code], *place, severity="warning" if code in WARNINGS else "error")


def place_of(*objects: object) -> Place:
    """Return the def or class line of the first function, method or class that has a source."""
    for given in objects:
        try:
            candidate = inspect.unwrap(given) if callable(given) else given
            file = inspect.getsourcefile(candidate)  # type: ignore[arg-type]
            lines, first = inspect.getsourcelines(candidate)  # type: ignore[arg-type]
        except Exception:  # noqa: S112 - no source, for one of many reasons
            continue
        if file is not None:
            return os.path.abspath(file), first + statement(lines)
    return None, None


def place_of_error(error: BaseException) -> Place:
    """Return the place that raised an exception: the innermost line outside our code and installed packages.

    If there is no such line, return a line of an installed package.
    """
    lines = own_lines(error, 1)
    return lines[0][:2] if lines else (None, None)


def statement(lines: Sequence[str]) -> int:
    """Return the index of the def or class line in a definition, after its decorators."""
    starts = ("class ", "def ", "async def ")
    decorated = bool(lines) and lines[0].lstrip().startswith("@")
    return next((i for i, line in enumerate(lines) if line.lstrip().startswith(starts)), 0) if decorated else 0


def one_line(error: BaseException) -> str:
    """Return an exception's type and text on one line."""
    return clip(" ".join(f"{type(error).__name__}: {describe(error)}".split()))


def _finding(code: str, message: str, *objects: object) -> Finding:
    return make(code, message, place_of(*objects))


def _attribute(owner: object, name: str) -> Any:
    """Return an attribute; None for a missing one, an abstract method, and a property that raises."""
    try:
        value = getattr(owner, name, None)
        return None if getattr(value, "__isabstractmethod__", False) is True else value
    except Exception:
        return None


def _instance(cls: type) -> tuple[object | None, list[Finding]]:
    """Return an instance of a class; if the class cannot be called, return None and the finding.

    A class that lacks only get_tools or run gets no finding here, because other checks report the missing method.
    """
    missing = set(getattr(cls, "__abstractmethods__", ()))
    if missing and missing <= {"get_tools", "run"}:
        return None, []
    try:
        return cls(), []
    except (Exception, SystemExit) as error:
        text = f"{cls.__name__}() raised {one_line(error)}{_at(error)}"
        return None, [_finding("AGENT_INIT_FAILED", text, getattr(cls, "__init__"), cls)]  # noqa: B009


def _run(agent_loop: object, cls: type) -> Iterator[Finding]:
    run = _attribute(agent_loop, "run")
    if run is None:
        yield _finding("MISSING_RUN_METHOD", f"{cls.__name__} has no method run", cls)
    elif not callable(run):
        yield _finding("RUN_NOT_CALLABLE", f"run of {cls.__name__} is a {type(run).__name__}, not a method", cls)
    elif inspect.isasyncgenfunction(run) or inspect.isgeneratorfunction(run):
        kind = "an async generator" if inspect.isasyncgenfunction(run) else "a generator"
        yield _finding("RUN_NOT_ASYNC", f"run of {cls.__name__} is {kind}: it yields", run, cls)


def _get_tools(
    agent_loop: object, instance: object | None, cls: type, request: RolloutRequest
) -> tuple[Sequence[Any], list[Finding]]:
    """Return the tools, and the findings about get_tools and the tools."""
    get_tools = _attribute(agent_loop if instance is None else instance, "get_tools")
    if get_tools is None:
        return (), [_finding("MISSING_GET_TOOLS_METHOD", f"{cls.__name__} has no method get_tools", cls)]
    if not callable(get_tools):
        text = f"get_tools of {cls.__name__} is a {type(get_tools).__name__}, not a method"
        return (), [_finding("MISSING_GET_TOOLS_METHOD", text, cls)]
    if instance is None:
        return (), []
    own = getattr(get_tools, "__func__", None) is not RolloutAgentLoop.get_tools
    place = place_of(get_tools, cls) if own else place_of(cls)
    tools = _call(get_tools, request, place)
    if isinstance(tools, Finding):
        return (), [tools]
    findings = [finding for i, tool in enumerate(tools) for finding in _tool(tool, f"tools[{i}]", place)]
    return tools, [*findings, *_same_names(tools, place)]


def _same_names(tools: Sequence[Any], place: Place) -> Iterator[Finding]:
    """Yield a finding for each name that more than one tool has."""
    plain = []
    for tool in tools:
        with contextlib.suppress(Exception):  # _tool() reports it
            plain.append(plain_tool(tool))
    names = [_field(tool, ["function", "name"]) for tool in plain if isinstance(tool, dict)]
    for name, count in Counter(name for name in names if isinstance(name, str)).items():
        if count > 1:
            yield make("DUPLICATE_TOOL_NAME", f"{count} tools have the name {name!r}", place)


def _call(get_tools: Callable[..., Any], request: RolloutRequest, place: Place) -> Sequence[Any] | Finding:
    """Return the result of get_tools, or the finding if it is not a list of tools."""
    try:
        tools = get_tools(request)
        if must_wait(tools):
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop()
                if inspect.iscoroutine(tools):
                    tools.close()
                return make("GET_TOOLS_NOT_AWAITED", "get_tools is async and was not run: an event loop runs", place)
            tools = asyncio.run(await_tools(tools, GET_TOOLS_TIMEOUT))
    except (Exception, SystemExit) as error:
        return make("GET_TOOLS_EXCEPTION", f"get_tools raised {one_line(error)}{_at(error)}", place)
    if tools is None:
        return make("GET_TOOLS_RETURNS_NONE", "get_tools returned None, which is taken for an empty list", place)
    if not isinstance(tools, list | tuple):
        return make("GET_TOOLS_INVALID_TYPE", f"get_tools returned a {type(tools).__name__}, not a list", place)
    return tools


def _at(error: BaseException) -> str:
    """Return the place of an exception as a text; an empty one if it is not known."""
    file, line = place_of_error(error)
    return f" (at {file}:{line})" if file else ""


_MISSING = object()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


_CHECKS: tuple[tuple[str, Callable[[object], bool], str, str, str], ...] = (
    (
        "type",
        lambda value: isinstance(value, str) and value == "function",
        "'function'",
        "UNKNOWN_TOOL_TYPE",
        "MISSING_TOOL_TYPE",
    ),
    ("function", _is_dict, "a dict", "INVALID_FUNCTION_TYPE", "MISSING_FUNCTION"),
    ("function.name", _is_text, "a str that is not blank", "INVALID_FUNCTION_NAME", "MISSING_FUNCTION_NAME"),
    (  # every model server accepts these names; a blank name has another finding
        "function.name",
        lambda value: not _is_text(value) or re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(value)) is not None,
        "1 to 64 of a-z, A-Z, 0-9, _ and -",
        "UNUSUAL_FUNCTION_NAME",
        "",
    ),
    ("function.description", _is_text, "a sentence", "MISSING_FUNCTION_DESCRIPTION", "MISSING_FUNCTION_DESCRIPTION"),
    ("function.parameters", _is_dict, "a dict", "INVALID_PARAMETERS_TYPE", ""),
    (
        "function.parameters.type",
        lambda value: isinstance(value, str) and value == "object",
        "'object'",
        "PARAMETERS_TYPE_NOT_OBJECT",
        "PARAMETERS_TYPE_NOT_OBJECT",
    ),
)
"""(field, whether its value is good, what it should be, code for a bad value, code for a missing one or "").

A field is checked if its parent is a dict.
"""


def _tool(tool: object, label: str, place: Place) -> Iterator[Finding]:
    """Yield the findings about one tool. `label` names the tool in the texts of the findings."""
    try:
        plain = plain_tool(tool)
    except Exception as error:
        yield make("INVALID_TOOL_TYPE", f"{label} cannot be made a dict: {one_line(error)}", place)
        return
    if inspect.isroutine(plain):
        text = f"{label} is the function {getattr(plain, '__name__', '?')} without @tool"
        at = place_of(plain)
        yield make("INVALID_TOOL_TYPE", text, at if at[0] else place)
        return
    if not isinstance(plain, dict):
        yield make("INVALID_TOOL_TYPE", f"{label} is a {type(tool).__name__}, neither a dict nor a tool schema", place)
        return
    name = _field(plain, ["function", "name"])
    called = f"{label} ({name})" if _is_text(name) else label
    for field, good, expected, bad, missing in _CHECKS:
        *parent, last = field.split(".")
        value = _field(plain, [*parent, last])
        code = missing if value is _MISSING else "" if good(value) else bad
        if code and _is_dict(_field(plain, parent)):
            shown = "missing" if value is _MISSING else reprlib.repr(value)
            yield make(code, f"{called}: {field} is {shown}, not {expected}", place)
    for key, near in misspelt_keys(plain):
        yield make("MISSPELT_KEY", f"{called}: the key {key} is unknown; is {near} meant?", place)
    function = getattr(tool, "function", None)
    if problem := result_problem(function):
        yield make("RESULT_WITHOUT_JSON", f"{called} {problem}", place_of(function))
    try:
        jsontext.copy(plain, label)
    except InvalidArgument as error:
        yield make("INVALID_TOOL_TYPE", f"{called} cannot be sent: {error}", place)


def _field(tool: dict[Any, Any], path: Sequence[str]) -> object:
    """Return a nested value; _MISSING if there is none."""
    value: object = tool
    for key in path:
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
    return value
