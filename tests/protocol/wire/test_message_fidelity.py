"""Messages without loss: an OpenAI-style message is received with all its keys, as it was sent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, rollout_pb2
from osmosis_grpc.protocol.types import InitRequest, RolloutRequest
from osmosis_grpc.protocol.types.messages import ROLES, copy_message, tool_dicts
from osmosis_grpc.protocol.wire.message import (
    message_from_wire,
    message_to_wire,
    params_from_wire,
    params_to_wire,
    tool_from_wire,
    tool_to_wire,
    usage_from_wire,
    usage_to_wire,
)
from osmosis_grpc.protocol.wire.rollout import init_from_wire, init_to_wire

TEXT = st.text(max_size=8)
NUMBER = (
    st.integers(-2, 2) | st.integers() | st.integers(2**53, 2**80) | st.floats(allow_nan=False, allow_infinity=False)
)
SCALAR = st.none() | st.booleans() | NUMBER | TEXT
NESTED = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
JSON = SCALAR | NESTED | NESTED
# Keys that mean something to somebody, the protocol's own field names among them.
UNKNOWN = st.sampled_from(["extra_json", "parts", "text", "null_content", "reasoning_content", "refusal"]) | TEXT


def mostly(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from([kind, kind, JSON]).flatmap(lambda chosen: chosen)


def an_object(required: dict[str, Any] | None = None, **typed: Any) -> st.SearchStrategy[dict[str, Any]]:
    """An object some of whose keys are typed: absent, of their type, or any JSON; and unknown keys."""
    known = st.fixed_dictionaries(required or {}, optional={key: mostly(kind) for key, kind in typed.items()})
    return st.builds(lambda rest, keys: {**rest, **keys}, st.dictionaries(UNKNOWN, JSON, max_size=2), known)


PART = an_object(type=TEXT, text=TEXT)
CALL = an_object(id=TEXT, type=st.just("function"), function=an_object(name=TEXT, arguments=TEXT))
MESSAGE = an_object(
    {"role": st.sampled_from(sorted(ROLES))},
    content=TEXT | st.none() | st.lists(PART, max_size=3) | st.lists(mostly(PART), max_size=3),
    tool_calls=st.lists(CALL, max_size=2) | st.lists(mostly(CALL), max_size=2),
    tool_call_id=TEXT,
    name=TEXT,
)
TOOL = an_object(type=st.just("function"), function=an_object(name=TEXT, description=TEXT, parameters=JSON))
PARAMS = an_object(
    {}, stop=TEXT | st.lists(TEXT, max_size=2), seed=st.integers(-(2**63), 2**63 - 1), logprobs=st.booleans()
).flatmap(
    lambda rest: st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.none() | st.floats(0, 1e300),
            "top_p": st.none() | st.floats(0, 1),
            "max_tokens": st.none() | st.integers(1, 2**70),
        },
    ).map(lambda bounded: {**rest, **bounded})
)
COUNT = st.integers(0, 2**63 - 1)
USAGE = st.builds(
    lambda rest, counts: {**rest, **counts},
    st.dictionaries(UNKNOWN, JSON, max_size=2),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), COUNT | st.none() | TEXT)
    ),
)


def exact(value: Any) -> str:
    """A text in which 1, 1.0 and true differ, and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def trip(message: dict[str, Any]) -> dict[str, Any]:
    return message_from_wire(over_the_wire(message_to_wire(copy_message(message, "m"))), "m")


@given(MESSAGE)
def test_any_message_survives(message):
    before = exact(message)
    assert exact(trip(message)) == before
    assert exact(message) == before, "the caller's own message was changed"


CASES = {
    "no content": {"role": "assistant"},
    "null content": {"role": "assistant", "content": None},
    "empty content": {"role": "user", "content": ""},
    "no parts": {"role": "user", "content": []},
    "an empty part": {"role": "user", "content": [{}]},
    "unknown part": {"role": "user", "content": [{"type": "hologram", "hologram": {"url": "x", "n": 1}}]},
    "a part that is text": {"role": "user", "content": ["hello", {"type": "text", "text": "x"}]},
    "content that is a number": {"role": "user", "content": 1.0},
    "content that is an object": {"role": "user", "content": {"text": "x"}},
    "null in a part": {"role": "user", "content": [{"type": "text", "text": None}]},
    "no tool calls": {"role": "assistant", "tool_calls": []},
    "null tool calls": {"role": "assistant", "content": None, "tool_calls": None},
    "an empty tool call": {"role": "assistant", "tool_calls": [{}]},
    "broken tool call": {"role": "assistant", "tool_calls": [{"id": "a", "function": None}, "b"]},
    "empty function": {"role": "assistant", "tool_calls": [{"id": None, "type": "", "function": {}}]},
    "broken arguments": {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]},
    "arguments as an object": {"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": 1}}}]},
    "unknown keys at each level": {
        "role": "assistant",
        "a": {"b": [None]},
        "content": [{"type": "text", "c": 1}],
        "tool_calls": [{"id": "1", "d": 2, "function": {"name": "f", "e": 3}}],
    },
    "empty ids": {"role": "tool", "content": "x", "tool_call_id": "", "name": ""},
    "null ids": {"role": "tool", "content": "x", "tool_call_id": None, "name": None},
    "three things that are equal": {"role": "user", "one": [1, 1.0, True], "zero": [0, 0.0, -0.0, False]},
    "whole numbers beyond doubles": {"role": "user", "n": [2**53 + 1, -(2**63), 10**30]},
    "the ends of doubles": {"role": "user", "n": [5e-324, 1.7976931348623157e308, 0.1]},
    "not ASCII": {"role": "user", "content": "ü 字 🙂 \u2028 \u0000", "ключ": "\u0085"},
    "names of the protocol": {"role": "user", "extra_json": "{}", "parts": [1], "text": "x", "null_content": True},
}


@pytest.mark.parametrize("message", CASES.values(), ids=CASES.keys())
def test_a_message_survives(message):
    assert exact(trip(message)) == exact(message)


def test_typed_keys_are_typed():
    """Another language finds the standard keys in their fields, not in JSON text."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "name": "n", "tool_call_id": "t", "tool_calls": [call]}
    wire = message_to_wire({**message, "vendor": 1})
    assert (wire.role, wire.text, wire.name, wire.tool_call_id) == ("assistant", "hi", "n", "t")
    assert wire.tool_calls[0].function.name == "f"
    assert wire.tool_calls[0].extra_json == wire.tool_calls[0].function.extra_json == ""
    assert json.loads(wire.extra_json) == {"vendor": 1}
    assert message_to_wire({"role": "user", "content": [{"type": "text", "text": "x"}]}).parts.parts[0].text == "x"
    assert message_to_wire({"role": "user", "content": None}).null_content


@given(TOOL)
def test_any_tool_survives(tool):
    (sent,) = tool_dicts([tool])
    assert exact(tool_from_wire(over_the_wire(tool_to_wire(sent)), "tool")) == exact(tool)


@given(PARAMS)
def test_any_sampling_parameters_survive(params):
    assert exact(params_from_wire(over_the_wire(params_to_wire(params)), "sampling")) == exact(params)


@pytest.mark.parametrize("params", [{"temperature": 1}, {"top_p": 1}, {"temperature": 0, "top_p": 0}])
def test_whole_numbers_of_a_double_keep_their_value(params):
    assert params_from_wire(over_the_wire(params_to_wire(params)), "sampling") == params


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, None, 2**63 - 1, 2**63, -(2**63), "7", "", [], ["a"], ["a", 1], {}], ids=repr
)
@pytest.mark.parametrize("key", ["stop", "seed", "logprobs", "vendor"])
def test_a_parameter_of_another_type_survives(key, value):
    assert exact(params_from_wire(over_the_wire(params_to_wire({key: value})), "s")) == exact({key: value})
    usage = {"prompt_tokens": value}
    if type(value) is not int or value >= 0:
        assert exact(usage_from_wire(over_the_wire(usage_to_wire(usage)), "u")) == exact(usage)


@given(USAGE)
def test_any_usage_survives(usage):
    assert exact(usage_from_wire(over_the_wire(usage_to_wire(usage)), "usage")) == exact(usage)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_any_metadata_survives(metadata):
    init = InitRequest(request=RolloutRequest(rollout_id="r", metadata=metadata))
    assert exact(init_from_wire(over_the_wire(init_to_wire(init))).request.metadata) == exact(metadata)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [200, 255, 256])
@pytest.mark.parametrize(
    "message",
    [
        lambda levels: {"role": "user", "content": nested(levels)},
        lambda levels: {"role": "user", "content": [{"type": "x", "data": nested(levels - 2)}]},
        lambda levels: {"role": "user", "vendor": nested(levels)},
    ],
    ids=["content", "a part", "an unknown key"],
)
def test_deep_values_survive(message, levels):
    assert trip(message(levels)) == message(levels)


@pytest.mark.parametrize("levels", [200, 254])
def test_deep_tools_and_metadata_survive(levels):
    tool = {"function": {"parameters": nested(levels)}}
    assert tool_from_wire(over_the_wire(tool_to_wire(tool_dicts([tool])[0])), "tool") == tool
    init = InitRequest(request=RolloutRequest(rollout_id="r", metadata={"a": nested(levels)}))
    assert init_from_wire(over_the_wire(init_to_wire(init))).request.metadata == {"a": nested(levels)}


def test_nothing_is_taken_for_something():
    """A message of another implementation that says nothing comes out saying nothing."""
    assert message_from_wire(message_pb2.Message(role="user"), "m") == {"role": "user"}
    assert tool_from_wire(message_pb2.Tool(), "t") == {}
    assert params_from_wire(message_pb2.SamplingParams(), "s") == {}
    assert usage_from_wire(message_pb2.Usage(), "u") == {}
    assert init_from_wire(rollout_pb2.InitRequest(rollout_id="r")).request == RolloutRequest(
        rollout_id="r", messages=[]
    )
