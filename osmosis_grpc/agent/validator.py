"""Checks an agent loop before it runs, and reports all problems at once."""

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
from osmosis_grpc.agent.tool_checks import misspelt_keys, result_problem
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisRolloutError
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.messages import plain_tool
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.protocol.types.stack_frames import own_lines

Severity = Literal["error", "warning"]
Place = tuple[str | None, int | None]
"""A file and a line, counted from 1; both None without a source."""

GET_TOOLS_TIMEOUT = 10.0
"""Timeout in seconds of an async get_tools. A server has the same timeout."""
REQUEST = RolloutRequest.unchecked(
    rollout_id="validate", messages=[{"role": "user", "content": "What is (2 + 3) * 4?"}]
)
"""The request that get_tools gets."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an agent loop. The message and the hint for its solution have one line each."""

    code: str
    message: str
    hint: str = ""
    file: str | None = None
    """The file of the class or the method; None without a source."""
    line: int | None = None
    """Counted from 1; None without a source."""
    severity: Severity = "error"
    field: str | None = None
    """What is wrong: `get_tools`, its result `get_tools()`, `run`, a tool such as `tools[0]`, or a key of it such as
    `tools[0].function.name`. None for other problems."""
    missing: bool = False
    """Whether the field is missing."""

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The name of an agent loop and all findings about it."""

    agent_name: str | None
    """None if it has no usable name."""
    findings: tuple[Finding, ...] = ()
    tool_count: int = 0
    """The number of checked tools; 0 if get_tools returned no list."""

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

    def __init__(self, result: Any) -> None:
        self.result, self.errors = result, result.errors
        lines = "".join(f"\n  {e.code}: {e.message}" + (f" ({e.hint})" if e.hint else "") for e in self.errors)
        name = result.agent_name or "without a name"
        super().__init__(f"agent loop {name} is not valid, with {len(self.errors)} error(s):{lines}")


def validate_agent_loop(agent_loop: object, request: RolloutRequest | None = None) -> ValidationResult:
    """Return all problems of an agent loop, or of any other object. Raises nothing.

    A class is checked and then called without arguments. run is not called. An async get_tools runs with asyncio.run;
    within a running event loop this is impossible, and there is a warning that the tools were not checked.

    Args:
        agent_loop: The agent loop, or its class.
        request: The argument of get_tools. get_tools is called once, unless the class cannot be called.
    """
    cls = agent_loop if isinstance(agent_loop, type) else type(agent_loop)
    name = _attribute(agent_loop, "name")
    findings = list(name_findings(name, cls.__name__, cls))
    instance: object | None = agent_loop
    if isinstance(agent_loop, type):
        instance, failed = _instance(agent_loop)
        findings += failed
    tools: Sequence[Any] = ()
    if instance is not None:
        tools, tool_findings = _get_tools(instance, cls, request or REQUEST)
        findings += tool_findings
    findings += _run(agent_loop, cls)
    usable = not any(finding.code == "INVALID_AGENT_NAME" for finding in findings)
    return ValidationResult(str(name) if usable else None, tuple(findings), len(tools))


def name_findings(name: object, owner: str, *objects: object) -> Iterator[Finding]:
    """Yield the finding about a name that trainers cannot use."""
    if problem := name_problem(name):
        hint = 'give the class or the configuration a name of 1 to 256 characters, such as name = "my-agent"'
        yield Finding("INVALID_AGENT_NAME", f"{owner}: {problem[1]}", hint, *place_of(*objects))


def place_of(*objects: object) -> Place:
    """Return the def or class line of the first function, method or class that has a source."""
    for each in objects:
        try:
            candidate = inspect.unwrap(each) if callable(each) else each
            file = inspect.getsourcefile(candidate)  # type: ignore[arg-type]
            lines, first = inspect.getsourcelines(candidate)  # type: ignore[arg-type]
        except Exception:  # noqa: S112 - no source, for one of many reasons
            continue
        if file is not None:
            decorated = lines[0].lstrip().startswith("@")
            starts = ("class ", "def ", "async def ")
            skipped = next((i for i, line in enumerate(lines) if line.lstrip().startswith(starts)), 0)
            return os.path.abspath(file), first + (skipped if decorated else 0)
    return None, None


def place_of_error(error: BaseException) -> Place:
    """Return the place that raised an exception: the innermost line outside our code and installed packages.

    If there is no such line, return a line of an installed package.
    """
    lines = own_lines(error, 1)
    return lines[0][:2] if lines else (None, None)


def one_line(error: BaseException) -> str:
    """Return an exception's type and text on one line."""
    return clip(" ".join(f"{type(error).__name__}: {describe(error)}".split()))


def _attribute(owner: object, name: str) -> Any:
    """Return an attribute; None for a missing one, an abstract method, and a property that raises."""
    try:
        value = getattr(owner, name, None)
        return None if getattr(value, "__isabstractmethod__", False) is True else value
    except Exception:
        return None


def _instance(cls: type) -> tuple[object | None, list[Finding]]:
    """Return an instance of a class; if the class cannot be called, return None and the finding.

    A class that lacks only run gets no finding here, because another check reports it.
    """
    if getattr(cls, "__abstractmethods__", None) == {"run"}:
        return None, []
    try:
        return cls(), []
    except (Exception, SystemExit) as error:
        text = f"{cls.__name__}() raised {one_line(error)}{_at(error)}"
        hint = "give every parameter of __init__ a default, or name an instance in place of the class"
        return None, [Finding("AGENT_INIT_FAILED", text, hint, *place_of(getattr(cls, "__init__"), cls))]  # noqa: B009


def _run(agent_loop: object, cls: type) -> Iterator[Finding]:
    run = _attribute(agent_loop, "run")
    if not callable(run):
        problem = f"{cls.__name__} has no method run"
    elif inspect.isasyncgenfunction(run) or inspect.isgeneratorfunction(run):
        problem = f"run of {cls.__name__} yields, so it does not return a result"
    else:
        return
    hint = "write async def run(self, ctx) without yield, and end it with return ctx.complete(...)"
    yield Finding("INVALID_RUN", problem, hint, *place_of(run, cls), field="run", missing=not callable(run))


def _get_tools(instance: object, cls: type, request: RolloutRequest) -> tuple[Sequence[Any], list[Finding]]:
    """Return the tools, and the findings about get_tools and the tools."""
    get_tools = _attribute(instance, "get_tools")
    if not callable(get_tools):
        hint = "add a method get_tools(self, request) that returns a list of tools"
        text = f"{cls.__name__} has no method get_tools"
        return (), [Finding("GET_TOOLS_FAILED", text, hint, *place_of(cls), field="get_tools", missing=True)]
    own = getattr(get_tools, "__func__", None) is not RolloutAgentLoop.get_tools
    place = place_of(get_tools, cls) if own else place_of(cls)
    tools = _call(get_tools, request, place)
    if isinstance(tools, Finding):
        return (), [tools]
    findings = [finding for i, tool in enumerate(tools) for finding in _tool(tool, f"tools[{i}]", place)]
    plain = []
    for tool in tools:
        with contextlib.suppress(Exception):  # _tool() reports it
            plain.append(plain_tool(tool))
    names = [_field(tool, ["function", "name"]) for tool in plain if isinstance(tool, dict)]
    for name, count in Counter(name for name in names if isinstance(name, str)).items():
        if count > 1:
            hint = "give each tool a name of its own, for example with @tool(name=...)"
            findings.append(Finding("INVALID_TOOL", f"{count} tools have the name {name!r}", hint, *place))
    return tools, findings


def _call(get_tools: Callable[..., Any], request: RolloutRequest, place: Place) -> Sequence[Any] | Finding:
    """Return the result of get_tools, or the finding if it is not a list of tools."""
    try:
        tools = get_tools(request)
        if must_wait(tools):
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop()
                if inspect.iscoroutine(tools):
                    tools.close()
                hint = "validate outside of the event loop: asyncio.to_thread(validate_agent_loop, agent_loop)"
                text = "get_tools is async and was not run: an event loop runs"
                return Finding("DOUBTFUL_TOOLS", text, hint, *place, severity="warning")
            tools = asyncio.run(await_tools(tools, GET_TOOLS_TIMEOUT))
    except (Exception, SystemExit) as error:
        hint = "make get_tools(self, request) return for any request; what it raises refuses the rollout"
        text = f"get_tools raised {one_line(error)}{_at(error)}"
        return Finding("GET_TOOLS_FAILED", text, hint, *place, field="get_tools")
    if tools is None:
        text = "get_tools returned None, which is taken for an empty list"
        hint = "return [] to say that there are no tools"
        return Finding("DOUBTFUL_TOOLS", text, hint, *place, severity="warning", field="get_tools()", missing=True)
    if not isinstance(tools, list | tuple):
        text = f"get_tools returned a {type(tools).__name__}, not a list"
        return Finding("GET_TOOLS_FAILED", text, "return a list of tools", *place, field="get_tools()")
    return tools


def _at(error: BaseException) -> str:
    """Return the place of an exception as a text; an empty one if it is not known."""
    file, line = place_of_error(error)
    return f" (at {file}:{line})" if file else ""


_MISSING = object()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_plain(value: object) -> bool:
    """Return whether every model server accepts a name. A blank name has another finding."""
    return not _is_text(value) or re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(value)) is not None


_CHECKS: tuple[tuple[str, Callable[[object], bool], str, Severity], ...] = (
    ("type", lambda value: value == "function", "'function'", "error"),
    ("function", lambda value: isinstance(value, dict), "a dict with name, description and parameters", "error"),
    ("function.name", _is_text, "a str that is not blank", "error"),
    ("function.name", _is_plain, "1 to 64 of a-z, A-Z, 0-9, _ and -, and model servers refuse it", "warning"),
    ("function.description", _is_text, "a sentence, by which the model chooses", "warning"),
    ("function.parameters", lambda value: value is _MISSING or isinstance(value, dict), "a JSON Schema", "error"),
    ("function.parameters.type", lambda value: value == "object", "'object'", "error"),
)
"""A field, whether its value is good, what it should be, and the severity. It is checked if its parent is a dict."""


def _tool(tool: object, label: str, place: Place) -> Iterator[Finding]:
    """Yield the findings about one tool. `label` names the tool in the texts of the findings."""
    hint = "write @tool above the function, or make the tool a schema or a dict of plain JSON values"
    try:
        plain = plain_tool(tool)
    except Exception as error:
        text = f"{label} cannot be made a dict: {one_line(error)}"
        yield Finding("INVALID_TOOL", text, hint, *place, field=label)
        return
    if not isinstance(plain, dict):
        name = getattr(plain, "__name__", "?")
        kind = f"the function {name} without @tool" if inspect.isroutine(plain) else f"a {type(tool).__name__}"
        at = place_of(plain) if inspect.isroutine(plain) else (None, None)
        yield Finding("INVALID_TOOL", f"{label} is {kind}, not a tool", hint, *(at if at[0] else place), field=label)
        return
    name = _field(plain, ["function", "name"])
    called = f"{label} ({name})" if _is_text(name) else label
    for field, good, expected, severity in _CHECKS:
        *parent, last = field.split(".")
        value = _field(plain, [*parent, last])
        if not good(value) and isinstance(_field(plain, parent), dict):
            shown = "missing" if value is _MISSING else reprlib.repr(value)
            code = "INVALID_TOOL" if severity == "error" else "DOUBTFUL_TOOLS"
            text = f"{called}: {field} is {shown}, not {expected}"
            advice = f"correct {field} in the tool's schema"
            yield Finding(code, text, advice, *place, severity, f"{label}.{field}", value is _MISSING)
    for key, near in misspelt_keys(plain):
        text = f"{called}: the key {key} is unknown; is {near} meant?"
        yield Finding("DOUBTFUL_TOOLS", text, "correct the key: model servers ignore it", *place, severity="warning")
    function = getattr(tool, "function", None)
    if problem := result_problem(function):
        advice = "return a dict, a list, a number, a string, a pydantic model or a dataclass"
        at = place_of(function)
        yield Finding("RESULT_WITHOUT_JSON", f"{called} {problem}", advice, *at, severity="warning")
    try:
        jsontext.copy(plain, label)
    except InvalidArgument as error:
        yield Finding("INVALID_TOOL", f"{called} cannot be sent: {error}", hint, *place)


def _field(tool: dict[Any, Any], path: Sequence[str]) -> object:
    """Return a nested value; _MISSING if there is none."""
    value: object = tool
    for key in path:
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
    return value
