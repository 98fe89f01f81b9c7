"""The checks of agent loops before they run: code, severity and place of each finding."""

import asyncio
import functools
from abc import abstractmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from osmosis_grpc.agent import RolloutAgentLoop, validator
from osmosis_grpc.agent.validator import AgentLoopValidationError, validate_agent_loop
from osmosis_grpc.agent.workflow_validator import validate_agent
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.rollout import OpenAIFunctionSchema, OpenAIFunctionToolSchema, tool
from osmosis_grpc.testing.calculator import CalculatorAgent

FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
WARNING_CODES = {"DOUBTFUL_TOOLS", "RESULT_WITHOUT_JSON"}


def line_of(mark: str) -> int:
    (line,) = [n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(f"  # {mark}")]
    return line


def codes(agent: object) -> list[str]:
    return [finding.code for finding in validate_agent_loop(agent).findings]


class Good(RolloutAgentLoop):
    name = "good"

    def get_tools(self, request):
        return [{"type": "function", "function": FUNCTION}]

    async def run(self, ctx):
        return ctx.complete(ctx.request.messages)


class WithTools(Good):
    """get_tools returns the given value, or raises it."""

    def __init__(self, tools):
        self.returned = tools

    def get_tools(self, request):  # get_tools
        if isinstance(self.returned, BaseException):
            raise self.returned  # raises
        return self.returned


def with_function(**fields):
    return WithTools([{"type": "function", "function": FUNCTION | fields}])


@tool
async def connect() -> list[OsmosisRolloutError]:  # connect
    """Connects."""


TOOLS = {
    "without a type": ([{"function": FUNCTION}], "INVALID_TOOL"),
    "another type": ([{"type": "tool", "function": FUNCTION}], "INVALID_TOOL"),
    "no function": ([{"type": "function"}], "INVALID_TOOL"),
    "a function that is not a dict": ([{"type": "function", "function": "add"}], "INVALID_TOOL"),
    "no name": ([{"type": "function", "function": {"description": "Adds."}}], "INVALID_TOOL"),
    "a blank name": (
        [OpenAIFunctionToolSchema(function=OpenAIFunctionSchema(name=" ", description="Adds."))],
        "INVALID_TOOL",
    ),
    "an unusual name": ([{"type": "function", "function": FUNCTION | {"name": "up per!"}}], "DOUBTFUL_TOOLS"),
    "no description": ([OpenAIFunctionToolSchema(function=OpenAIFunctionSchema(name="add"))], "DOUBTFUL_TOOLS"),
    "parameters that are no dict": ([{"type": "function", "function": FUNCTION | {"parameters": [1]}}], "INVALID_TOOL"),
    "parameters of an array": (
        [{"type": "function", "function": FUNCTION | {"parameters": {"type": "array"}}}],
        "INVALID_TOOL",
    ),
    "a name twice": ([{"type": "function", "function": FUNCTION}] * 2, "INVALID_TOOL"),
    "a function without @tool": ([len], "INVALID_TOOL"),
    "a number": ([3], "INVALID_TOOL"),
    "what is not JSON": ([{"type": "function", "function": FUNCTION, "x": len}], "INVALID_TOOL"),
    "None": (None, "DOUBTFUL_TOOLS"),
    "no list": ({"type": "function"}, "GET_TOOLS_FAILED"),
    "an exception": (KeyError("name"), "GET_TOOLS_FAILED"),
    "an exit": (SystemExit("no such file:\nbye"), "GET_TOOLS_FAILED"),
}


@pytest.mark.parametrize(("tools", "code"), TOOLS.values(), ids=TOOLS)
def test_a_problem_of_the_tools_has_a_code_and_the_line_of_get_tools(tools, code):
    result = validate_agent_loop(WithTools(tools))
    (finding,) = result.findings
    assert (finding.code, finding.file, finding.line) == (code, __file__, line_of("get_tools"))
    assert finding.severity == ("warning" if code in WARNING_CODES else "error")
    assert result.valid == (code in WARNING_CODES)
    assert (result.errors, result.warnings) == (((), (finding,)) if result.valid else ((finding,), ()))
    assert "\n" not in finding.message
    assert finding.hint


def test_an_exception_of_get_tools_is_reported_with_its_line():
    (finding,) = validate_agent_loop(WithTools(KeyError("name"))).findings
    assert finding.message.endswith(f"KeyError: 'name' (at {__file__}:{line_of('raises')})")


def test_a_result_without_json_has_the_line_of_the_tool():
    (finding,) = validate_agent_loop(WithTools([connect])).findings
    assert (finding.code, finding.severity) == ("RESULT_WITHOUT_JSON", "warning")
    assert (finding.file, finding.line) == (__file__, line_of("connect"))


@pytest.mark.parametrize("name", ["up per!", "é", "a" * 65, "a.b"])
def test_a_name_that_model_servers_refuse_is_a_warning(name):
    assert codes(with_function(name=name)) == ["DOUBTFUL_TOOLS"]


@pytest.mark.parametrize("name", ["upper", "get-weather_2", "a" * 64])
def test_a_name_that_they_take_is_fine(name):
    assert codes(with_function(name=name)) == []


@pytest.mark.parametrize(
    ("function", "path", "near"),
    [
        ({"paramaters": {"type": "object"}}, "function.paramaters", "parameters"),
        ({"desciption": "Adds."}, "function.desciption", "description"),
        ({"parameters": {"type": "object", "propertys": {}}}, "function.parameters.propertys", "properties"),
        (
            {"parameters": {"type": "object", "properties": {"a": {"type": "array", "itmes": {}}}}},
            "function.parameters.properties.a.itmes",
            "items",
        ),
        (
            {"parameters": {"type": "object", "properties": {"a": {"anyOf": [{"eunm": [1]}]}}}},
            "function.parameters.properties.a.anyOf[0].eunm",
            "enum",
        ),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest(function, path, near):
    (finding,) = validate_agent_loop(with_function(**function)).findings
    assert finding.code == "DOUBTFUL_TOOLS"
    assert f"the key {path} is unknown; is {near} meant?" in finding.message


def test_properties_and_keys_of_a_vendor_are_not_misspelt():
    properties = {"nmae": {"type": "string", "x-vendor": 1}, "typ": {"type": "string"}}
    assert codes(with_function(parameters={"type": "object", "properties": properties}, cache_control={})) == []


# The class


class MissingRun(RolloutAgentLoop):  # INVALID_RUN
    name = "missing-run"
    get_tools = Good.get_tools


class Yields(Good):
    async def run(self, ctx):
        yield ctx


class Unnamed(Good):
    def __init__(self):
        self.name = "  "


class Picky(Good):
    def __init__(self, path):  # AGENT_INIT_FAILED
        self.path = path


class AbstractOtherwise(Good):
    @abstractmethod
    def score(self): ...


class NothingAtAll(RolloutAgentLoop):
    pass


def logged(function):
    @functools.wraps(function)
    def wrapper(self, argument):
        return function(self, argument)

    return wrapper


class Everything:
    name = ""
    run = Yields.run

    def get_tools(self, request):
        return [{"type": "function", "function": FUNCTION}, {"function": {"name": "sub", "parameters": 7}}, 3]


class RaisesEverywhere:
    @property
    def name(self):
        raise RuntimeError("no name")

    get_tools = run = name


CLASSES = {
    "no run": (MissingRun, ["INVALID_RUN"]),
    "run is a text": (type("Texts", (Good,), {"run": "later"}), ["INVALID_RUN"]),
    "run yields": (Yields(), ["INVALID_RUN"]),
    "a blank name": (Unnamed(), ["INVALID_AGENT_NAME"]),
    "no name and no run": (NothingAtAll, ["INVALID_AGENT_NAME", "INVALID_RUN"]),
    "no get_tools": (SimpleNamespace(name="n", run=Good().run), ["GET_TOOLS_FAILED"]),
    "__init__ with a parameter": (Picky, ["AGENT_INIT_FAILED"]),
    "abstract": (AbstractOtherwise, ["AGENT_INIT_FAILED"]),
    "all at once": (
        Everything(),
        ["INVALID_AGENT_NAME", "INVALID_TOOL", "DOUBTFUL_TOOLS", "INVALID_TOOL", "INVALID_TOOL", "INVALID_RUN"],
    ),
}


@pytest.mark.parametrize(("agent", "expected"), CLASSES.values(), ids=CLASSES)
def test_all_problems_of_an_agent_are_reported_at_once(agent, expected):
    result = validate_agent_loop(agent)
    assert [finding.code for finding in result.findings] == expected
    assert (result.agent_name is None) == ("INVALID_AGENT_NAME" in expected)


@pytest.mark.parametrize("agent", [MissingRun, Picky])
def test_a_problem_of_a_class_has_its_line(agent):
    (finding,) = validate_agent_loop(agent).findings
    assert (finding.file, finding.line) == (__file__, line_of(finding.code))


@pytest.mark.parametrize("thing", [None, 3, "agent", {}, len, object(), int, type, RaisesEverywhere()])
def test_anything_can_be_looked_at(thing):
    result = validate_agent_loop(thing)
    assert {"INVALID_AGENT_NAME", "INVALID_RUN"} <= {finding.code for finding in result.findings}
    assert not result
    assert result.tool_count == 0


def test_a_thing_without_source_has_no_place():
    assert {(finding.file, finding.line) for finding in validate_agent_loop(3).findings} == {(None, None)}


# What is fine, though it looks odd


class Schema(BaseModel):
    """A schema object of another library."""

    type: str = "function"
    function: dict = FUNCTION


class OwnSchema(Good):
    async def get_tools(self, request):
        return (Schema(),)


class Decorated(Good):
    @logged
    async def run(self, ctx):
        return ctx.complete(ctx.request.messages)


class CallableRun(Good):
    class Run:
        async def __call__(self, ctx):
            return ctx.complete(ctx.request.messages)

    run = Run()


@pytest.mark.parametrize(
    ("agent", "count"),
    [
        (CalculatorAgent(), 4),
        (CalculatorAgent, 4),
        (Good, 1),
        (Decorated, 1),
        (CallableRun, 1),
        (OwnSchema, 1),
        (SimpleNamespace(name="plain", get_tools=lambda request: [], run=Good().run), 0),
    ],
)
def test_a_good_agent_has_no_findings_and_its_tools_are_counted(agent, count):
    result = validate_agent_loop(agent)
    assert (result.valid, result.findings, result.tool_count) == (True, (), count)
    result.raise_if_invalid()


# An async get_tools


class Async(Good):
    async def get_tools(self, request):
        return ["no tool"]


def test_an_async_get_tools_has_a_limit(monkeypatch):
    class Slow(Good):
        async def get_tools(self, request):
            await asyncio.Event().wait()

    monkeypatch.setattr(validator, "GET_TOOLS_TIMEOUT", 0.05)
    assert codes(Slow()) == ["GET_TOOLS_FAILED"]


async def test_within_an_event_loop_an_async_get_tools_is_not_run():
    inside = validate_agent_loop(Async())
    assert ([finding.code for finding in inside.findings], inside.tool_count) == (["DOUBTFUL_TOOLS"], 0)
    outside = await asyncio.to_thread(validate_agent_loop, Async())
    assert ([finding.code for finding in outside.findings], outside.tool_count) == (["INVALID_TOOL"], 1)


# Refusing what is not valid


def test_errors_are_raised_all_at_once():
    result = validate_agent_loop(Everything())
    with pytest.raises(AgentLoopValidationError) as caught:
        result.raise_if_invalid()
    assert isinstance(caught.value, OsmosisRolloutError)
    assert (caught.value.result, caught.value.errors) == (result, result.errors)
    assert str(caught.value).count("\n") == len(result.errors)


@pytest.mark.parametrize("tools", [None, [OpenAIFunctionToolSchema(function=OpenAIFunctionSchema(name="add"))]])
def test_warnings_are_not_raised(tools):
    result = validate_agent_loop(WithTools(tools))
    assert result.warnings
    result.raise_if_invalid()


def test_an_agent_loop_with_tools_is_checked_as_a_loop():
    class Loop(RolloutAgentLoop):
        name = "loop"
        tools = (lambda: None,)

        def get_tools(self, request):
            raise RuntimeError("no tools")

        async def run(self, ctx):
            return ctx.complete()

    assert [finding.code for finding in validate_agent(Loop()).errors] == ["GET_TOOLS_FAILED"]
