"""Every code of the validator, on an agent that has just this wrong with it."""

import asyncio
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from osmosis_grpc.agent import validator
from osmosis_grpc.agent.validator import (
    HINTS,
    WARNINGS,
    AgentLoopValidationError,
    Finding,
    ValidationResult,
    validate_agent_loop,
)
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.testing.calculator import CalculatorAgent

SOURCE = Path(__file__).parent / "fixtures" / "broken_agents.py"
OF_THE_SDK = [
    "MISSING_NAME",
    "EMPTY_NAME",
    "INVALID_NAME_TYPE",
    "MISSING_TOOL_TYPE",
    "UNKNOWN_TOOL_TYPE",
    "MISSING_FUNCTION",
    "INVALID_FUNCTION_TYPE",
    "MISSING_FUNCTION_NAME",
    "INVALID_FUNCTION_NAME",
    "MISSING_FUNCTION_DESCRIPTION",
    "INVALID_PARAMETERS_TYPE",
    "PARAMETERS_TYPE_NOT_OBJECT",
    "INVALID_TOOL_TYPE",
    "GET_TOOLS_EXCEPTION",
    "GET_TOOLS_RETURNS_NONE",
    "GET_TOOLS_INVALID_TYPE",
    "MISSING_RUN_METHOD",
    "RUN_NOT_CALLABLE",
    "RUN_NOT_ASYNC",
]
OURS = [
    "MISSING_GET_TOOLS_METHOD",
    "AGENT_INIT_FAILED",
    "UNUSUAL_FUNCTION_NAME",
    "MISSPELT_KEY",
    "DUPLICATE_TOOL_NAME",
    "RESULT_WITHOUT_JSON",
]


def _agents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("validator_fixtures", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


agents = _agents()


def line_of(text: str) -> int:
    lines = [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if line.endswith(text)]
    assert len(lines) == 1, text
    return lines[0]


def fixture(code: str) -> object:
    """The class that is named as the code is; an instance where there can be one."""
    cls = getattr(agents, code.title().replace("_", ""))
    return cls if code in OURS or code == "MISSING_RUN_METHOD" else cls()


@pytest.mark.parametrize("code", OF_THE_SDK + OURS)
def test_each_code_has_place_message_and_hint(code):
    result = validate_agent_loop(fixture(code))
    assert [finding.code for finding in result.findings] == [code]
    finding = result.findings[0]
    assert (finding.file, finding.line) == (str(SOURCE), line_of(f"# here: {code}"))
    assert finding.message
    assert "\n" not in finding.message
    assert finding.hint == HINTS[code]
    assert finding.severity == ("warning" if code in WARNINGS else "error")
    assert result.valid == (code in WARNINGS)
    assert (result.errors, result.warnings) == (((), (finding,)) if result.valid else ((finding,), ()))


def test_the_codes_of_the_sdk_are_all_there():
    command_line = ["NOT_AN_AGENT_LOOP", "DUPLICATE_NAME"]
    assert set(HINTS) == {*OF_THE_SDK, *OURS, *command_line, "GET_TOOLS_NOT_AWAITED"}
    ours = {"GET_TOOLS_NOT_AWAITED", "UNUSUAL_FUNCTION_NAME", "MISSPELT_KEY", "RESULT_WITHOUT_JSON"}
    assert {"MISSING_FUNCTION_DESCRIPTION", "GET_TOOLS_RETURNS_NONE", *ours} == WARNINGS


@pytest.mark.parametrize("name", ["up per!", "é", "a" * 65, "a.b"])
def test_a_name_that_model_servers_refuse_is_a_warning(name):
    (finding,) = validate_agent_loop(agents.with_tool({"name": name})).findings
    assert (finding.code, finding.severity) == ("UNUSUAL_FUNCTION_NAME", "warning")


@pytest.mark.parametrize("name", ["upper", "get-weather_2", "a" * 64])
def test_a_name_that_they_take_is_fine(name):
    assert codes(agents.with_tool({"name": name})) == []


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
    (finding,) = validate_agent_loop(agents.with_tool(function)).findings
    assert (finding.code, finding.severity) == ("MISSPELT_KEY", "warning")
    assert f"the key {path} is unknown; is {near} meant?" in finding.message


def test_properties_and_keys_of_a_vendor_are_not_misspelt():
    properties = {"nmae": {"type": "string", "x-vendor": 1}, "typ": {"type": "string"}}
    function = {"parameters": {"type": "object", "properties": properties}, "cache_control": {}}
    assert codes(agents.with_tool(function)) == []


@pytest.mark.parametrize("agent", [CalculatorAgent(), CalculatorAgent], ids=["instance", "class"])
def test_a_good_agent_has_no_findings(agent):
    result = validate_agent_loop(agent)
    assert (result.valid, result.findings, result.agent_name) == (True, (), "calculator")


@pytest.mark.parametrize("name", ["Good", "Decorated", "Callable", "OwnSchema", "plain"])
def test_what_looks_odd_but_works_is_fine(name):
    assert validate_agent_loop(getattr(agents, name)).findings == ()


def codes(agent: object) -> list[str]:
    return [finding.code for finding in validate_agent_loop(agent).findings]


def test_everything_is_reported_at_once():
    result = validate_agent_loop(agents.Everything())
    assert [(f.code, (re.findall(r"tools\[\d\](?: \(\w+\))?", f.message) or [""])[0]) for f in result.findings] == [
        ("EMPTY_NAME", ""),
        ("UNKNOWN_TOOL_TYPE", "tools[1]"),
        ("MISSING_FUNCTION_NAME", "tools[1]"),
        ("MISSING_FUNCTION_DESCRIPTION", "tools[1]"),
        ("PARAMETERS_TYPE_NOT_OBJECT", "tools[1]"),
        ("INVALID_TOOL_TYPE", "tools[1]"),
        ("MISSING_TOOL_TYPE", "tools[2] (sub)"),
        ("MISSING_FUNCTION_DESCRIPTION", "tools[2] (sub)"),
        ("INVALID_PARAMETERS_TYPE", "tools[2] (sub)"),
        ("INVALID_TOOL_TYPE", "tools[3]"),
        ("RUN_NOT_ASYNC", ""),
    ]
    assert result.agent_name is None
    assert (len(result.errors), len(result.warnings)) == (9, 2)


def test_an_abstract_class_misses_all_its_methods():
    assert codes(agents.NothingAtAll) == ["MISSING_NAME", "MISSING_RUN_METHOD"]


def test_a_class_that_is_abstract_otherwise_cannot_be_made():
    (finding,) = validate_agent_loop(agents.AbstractOtherwise).findings
    assert finding.code == "AGENT_INIT_FAILED"
    assert "score" in finding.message


@pytest.mark.parametrize("thing", [None, 3, "agent", {}, len, object(), int, type, agents.RaisesEverywhere()])
def test_anything_can_be_looked_at(thing):
    assert {"MISSING_GET_TOOLS_METHOD", "MISSING_RUN_METHOD"} <= set(codes(thing))
    assert not validate_agent_loop(thing).valid


def test_a_thing_without_source_has_no_place():
    assert {(finding.file, finding.line) for finding in validate_agent_loop(3).findings} == {(None, None)}


def message(agent: object) -> str:
    (finding,) = validate_agent_loop(agent).findings
    return finding.message


def test_messages_say_what_is_wrong():
    assert message(agents.UnknownToolType()) == "tools[0] (add): type is 'tool', not 'function'"
    assert message(agents.MissingFunction()) == "tools[0]: function is missing, not a dict"
    assert message(agents.InvalidToolType()) == "tools[0] is the function len without @tool"
    assert message(agents.GetToolsReturnsNone()) == "get_tools returned None, which is taken for an empty list"
    assert message(agents.Generator()) == "run of Generator is an async generator: it yields"


def test_an_exception_of_get_tools_is_reported_with_its_line():
    assert message(agents.GetToolsException()) == (
        f"get_tools raised KeyError: 'name' (at {SOURCE}:{line_of('# raises')})"
    )
    assert message(agents.Exits()).startswith("get_tools raised SystemExit: no such file: bye (at ")


def test_an_async_get_tools_has_a_limit(monkeypatch):
    monkeypatch.setattr(validator, "GET_TOOLS_TIMEOUT", 0.05)
    assert message(agents.Slow()) == "get_tools raised TimeoutError: it took longer than 0.05 s"


async def test_within_an_event_loop_an_async_get_tools_is_not_run():
    result = validate_agent_loop(agents.GetToolsNotAwaited())
    place = str(SOURCE), line_of("# here: GET_TOOLS_NOT_AWAITED")
    text = "get_tools is async and was not run: an event loop runs"
    hint = HINTS["GET_TOOLS_NOT_AWAITED"]
    assert result.findings == (Finding("GET_TOOLS_NOT_AWAITED", text, hint, *place, severity="warning"),)
    in_a_thread = await asyncio.to_thread(validate_agent_loop, agents.GetToolsNotAwaited())
    assert [finding.code for finding in in_a_thread.findings] == ["INVALID_TOOL_TYPE"]


def test_hints_are_one_line_each():
    assert all(hint and "\n" not in hint for hint in HINTS.values())


# Refusing what is not valid


def test_errors_are_raised_all_at_once():
    result = validate_agent_loop(agents.Everything())
    with pytest.raises(AgentLoopValidationError) as caught:
        result.raise_if_invalid()
    assert isinstance(caught.value, OsmosisRolloutError)
    assert caught.value.result is result
    assert caught.value.errors == result.errors
    first, *lines = str(caught.value).splitlines()
    assert first == "agent loop without a name is not valid:"
    assert lines == [f"  {error.code}: {error.message} ({error.hint})" for error in result.errors]


def test_the_text_names_the_agent():
    with pytest.raises(AgentLoopValidationError, match=r"^agent loop good is not valid:\n  UNKNOWN_TOOL_TYPE: tools"):
        validate_agent_loop(agents.UnknownToolType()).raise_if_invalid()


@pytest.mark.parametrize("name", ["Good", "MissingFunctionDescription", "GetToolsReturnsNone"])
def test_warnings_are_not_raised(name):
    validate_agent_loop(getattr(agents, name)()).raise_if_invalid()


@pytest.mark.parametrize(
    ("agent", "count"),
    [
        (CalculatorAgent, 4),
        (CalculatorAgent(), 4),
        (agents.Good(), 1),
        (agents.UnknownToolType(), 1),
        (agents.Everything(), 4),
        (agents.GetToolsReturnsNone(), 0),
        (agents.GetToolsException(), 0),
        (agents.GetToolsInvalidType(), 0),
        (agents.NothingAtAll, 0),
        (agents.AgentInitFailed, 0),
        (None, 0),
    ],
)
def test_tools_that_were_looked_at_are_counted(agent, count):
    assert validate_agent_loop(agent).tool_count == count


async def test_tools_of_an_async_get_tools_are_counted_where_it_can_run():
    assert validate_agent_loop(agents.GetToolsNotAwaited()).tool_count == 0
    assert (await asyncio.to_thread(validate_agent_loop, agents.GetToolsNotAwaited())).tool_count == 1


def test_no_tools_were_looked_at_unless_told():
    assert ValidationResult("agent").tool_count == 0
