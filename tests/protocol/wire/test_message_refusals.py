"""Messages that may not travel: refused with InvalidArgument naming the place, on the way out and on the way in."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.messages import copy_message, copy_messages, tool_dicts
from osmosis_grpc.protocol.wire.message import (
    MAX_ITEMS,
    message_from_wire,
    message_to_wire,
    messages_from_wire,
    params_from_wire,
    params_to_wire,
    tool_call_from_wire,
    tool_from_wire,
    tools_from_wire,
    usage_from_wire,
)


def named(call, *args: Any) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args)
    return refusal.value.violations[0][0]


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


UNFIT = {
    "NaN": math.nan,
    "infinity": -math.inf,
    "unpaired surrogate": "a\ud800",
    "unpaired surrogate in a key": {"\udfff": 1},
    "257 levels": nested(257),
    "a thousand levels": nested(900),
    "a key that is a number": {1: 2},
    "a set": {1, 2},
    "bytes": b"x",
    "an object": object(),
    "more digits than are read": 10**5000,
    "more digits than are read, below zero": -(10**5000),
}


@pytest.mark.parametrize("value", UNFIT.values(), ids=UNFIT.keys())
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("m.content", lambda value: {"role": "user", "content": value}),
        ("m.content", lambda value: {"role": "user", "content": [{"type": "text", "text": value}]}),
        ("m.vendor", lambda value: {"role": "user", "vendor": {"deep": [value]}}),
        ("m.tool_calls", lambda value: {"role": "assistant", "tool_calls": [{"function": {"arguments": value}}]}),
    ],
    ids=["content", "part", "unknown key", "tool call"],
)
def test_a_bad_value_is_refused_before_it_is_sent(place, message, value):
    assert named(copy_message, message(value), "m").startswith(place)


@pytest.mark.parametrize("message", ["text", None, [], 1, object()])
def test_a_value_that_is_no_message_is_refused(message):
    assert named(copy_messages, [{"role": "user"}, message], "messages") == "messages[1]"


@pytest.mark.parametrize("role", [None, "", "robot", "User", 1, ["user"], {"role": "user"}, b"user"])
def test_an_unknown_role_is_refused(role):
    assert named(copy_message, {"role": role}, "m") == "m.role"


@pytest.mark.parametrize("key", [1, None, ("a",), "\ud800"], ids=repr)
def test_a_key_that_is_no_str_is_refused(key):
    assert named(copy_message, {"role": "user", key: 1}, "m").startswith("m")


@pytest.mark.parametrize("value", UNFIT.values(), ids=UNFIT.keys())
def test_a_bad_tool_is_refused_before_it_is_sent(value):
    tools = [{"type": "function"}, {"type": "function", "function": {"parameters": value}}]
    assert named(tool_dicts, tools).startswith("tools[1]")


# Where JSON text stands in these messages, by the path that names it.
PLACES = {
    "m.extra_json": lambda text: message_from_wire(pb.Message(role="user", extra_json=text), "m"),
    "m.parts.parts[1].extra_json": lambda text: message_from_wire(
        pb.Message(
            role="user", parts=pb.ContentParts(parts=[pb.ContentPart(type="text"), pb.ContentPart(extra_json=text)])
        ),
        "m",
    ),
    "m.tool_calls[0].extra_json": lambda text: message_from_wire(
        pb.Message(role="user", tool_calls=[pb.ToolCall(extra_json=text)]), "m"
    ),
    "m.tool_calls[0].function.extra_json": lambda text: message_from_wire(
        pb.Message(role="user", tool_calls=[pb.ToolCall(function=pb.FunctionCall(extra_json=text))]), "m"
    ),
    "t.extra_json": lambda text: tool_from_wire(pb.Tool(extra_json=text), "t"),
    "t.function.extra_json": lambda text: tool_from_wire(pb.Tool(function=pb.FunctionSchema(extra_json=text)), "t"),
    "t.function.parameters_json": lambda text: tool_from_wire(
        pb.Tool(function=pb.FunctionSchema(parameters_json=text)), "t"
    ),
    "s.extra_json": lambda text: params_from_wire(pb.SamplingParams(extra_json=text), "s"),
    "u.extra_json": lambda text: usage_from_wire(pb.Usage(extra_json=text), "u"),
}
BAD_JSON = {
    "NaN": '{"a":NaN}',
    "infinity": '{"a":-Infinity}',
    "out of range": '{"a":1e999}',
    "far out of range": '{"a":-1e99999999999}',
    "the same key twice": '{"a":1,"a":1}',
    "the same key twice, deeper": '{"a":[{"b":1,"b":2}]}',
    "more digits than are read": '{"a":' + "1" * 5000 + "}",
    "unpaired surrogate": '{"a":"\\ud800"}',
    "unpaired surrogate in a key": '{"\\uDFFF":1}',
    "surrogates the wrong way round": '{"a":"\\ude00\\ud83d"}',
    "300 levels": '{"a":' + "[" * 300 + "]" * 300 + "}",
    "a bomb of lists": '{"a":' + "[" * 100_000,
    "a bomb of objects": '{"a":' * 100_000,
    "broken": '{"a":',
    "two values": "{} {}",
    "single quotes": "{'a': 1}",
    "a control character": '{"a":"\n"}',
    "blank": " ",
}
NO_OBJECT = ["[]", "null", "1", '"a"', "true"]


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON.keys())
@pytest.mark.parametrize("place", PLACES)
def test_bad_json_is_refused_when_it_is_received(place, text):
    assert named(PLACES[place], text).startswith(place)


@pytest.mark.parametrize("text", NO_OBJECT)
@pytest.mark.parametrize("place", [place for place in PLACES if place.endswith("extra_json")])
def test_extra_json_must_be_an_object(place, text):
    assert named(PLACES[place], text) == place


JSON_LIKE = st.text(alphabet='{}[]",:\\ud8aeE0123456789.-+tfn\n é', max_size=30) | st.text(max_size=10)


@given(st.builds('{{"a":{}}}'.format, JSON_LIKE) | JSON_LIKE)
@example('{"a":"\\ud83d\\ude00"}')
@example('{"a":1E400}')
def test_any_text_is_an_object_or_refused(text):
    """Nothing but InvalidArgument is ever raised, and what is accepted can be sent again."""
    wire = pb.Message(role="user", extra_json=text)
    try:
        message = message_from_wire(wire, "m")
    except InvalidArgument:
        assert named(message_from_wire, wire, "m") == "m.extra_json"
    else:
        assert message == {"role": "user", **(json.loads(text) if text else {})}
        assert copy_message(message, "m") == message


@pytest.mark.parametrize("levels", [256, 257])
def test_a_received_message_can_be_sent_again(levels):
    """256 levels in one key of a message is the limit wherever they come from, 257 never get in."""
    lists = "[" * (levels - 2) + "]" * (levels - 2)
    part = pb.ContentPart(extra_json=f'{{"data":{lists}}}')
    wires = [
        pb.Message(role="user", parts=pb.ContentParts(parts=[part])),
        pb.Message(role="user", extra_json=f'{{"content":[1,{{"data":{lists}}}]}}'),
    ]
    for wire in wires:
        if levels > jsontext.MAX_DEPTH:
            assert named(message_from_wire, wire, "m").startswith("m")
        else:
            copy_message(message_from_wire(wire, "m"), "m")


REPEATED = [
    (pb.Message(role="user", extra_json='{"role":"user"}'), "m.extra_json"),
    (pb.Message(role="user", text="a", extra_json='{"content":"b"}'), "m.extra_json"),
    (pb.Message(role="user", null_content=pb.NullContent(), extra_json='{"content":null}'), "m.extra_json"),
    (pb.Message(role="user", parts=pb.ContentParts(), extra_json='{"content":[]}'), "m.extra_json"),
    (pb.Message(role="user", tool_calls=[pb.ToolCall()], extra_json='{"tool_calls":null}'), "m.extra_json"),
    (pb.Message(role="user", tool_call_id="", extra_json='{"tool_call_id":"x"}'), "m.extra_json"),
    (pb.Message(role="user", name="a", extra_json='{"name":"a"}'), "m.extra_json"),
    (pb.Message(role="user", tool_calls=[pb.ToolCall(id="a", extra_json='{"id":"b"}')]), "m.tool_calls[0].extra_json"),
    (
        pb.Message(role="user", tool_calls=[pb.ToolCall(function=pb.FunctionCall(), extra_json='{"function":null}')]),
        "m.tool_calls[0].extra_json",
    ),
]


TYPED = [
    (message_from_wire, pb.Message(role="user"), "role", '"user"'),
    *(
        (message_from_wire, pb.Message(role="user"), "content", text)
        for text in ('"a"', "null", "[]", '[{"text":"a"}]')
    ),
    (message_from_wire, pb.Message(role="assistant"), "tool_calls", '[{"id":"a"}]'),
    (message_from_wire, pb.Message(role="tool"), "tool_call_id", '"a"'),
    (message_from_wire, pb.Message(role="tool"), "name", '"a"'),
    (tool_call_from_wire, pb.ToolCall(), "id", '"a"'),
    (tool_call_from_wire, pb.ToolCall(), "type", '"function"'),
    (tool_call_from_wire, pb.ToolCall(), "function", "{}"),
    (tool_from_wire, pb.Tool(), "type", '"function"'),
    (tool_from_wire, pb.Tool(), "function", '{"name":"a"}'),
    (params_from_wire, pb.SamplingParams(), "temperature", "1"),
    (params_from_wire, pb.SamplingParams(), "top_p", "0.5"),
    (params_from_wire, pb.SamplingParams(), "max_tokens", "7"),
    (params_from_wire, pb.SamplingParams(), "seed", "-7"),
    (params_from_wire, pb.SamplingParams(), "logprobs", "true"),
    (params_from_wire, pb.SamplingParams(), "stop", '["a"]'),
    *((usage_from_wire, pb.Usage(), f"{of}_tokens", "7") for of in ("prompt", "completion", "total")),
]
INNER = [
    (lambda m, f: message_from_wire(pb.Message(role="user", parts=pb.ContentParts(parts=[m])), f), pb.ContentPart()),
    (lambda m, f: tool_call_from_wire(pb.ToolCall(function=m), f), pb.FunctionCall()),
    (lambda m, f: tool_from_wire(pb.Tool(function=m), f), pb.FunctionSchema()),
]
INNER_KEYS = [("type", "text"), ("name", "arguments"), ("name", "description", "parameters")]
TYPED += [(*inner, key, '"a"') for inner, keys in zip(INNER, INNER_KEYS, strict=True) for key in keys]
UNTYPED = {"content": "7", "tool_calls": "null", "function": "[]", "parameters": None, "role": None, "stop": '"a"'}
"""A value that does not fit the typed field of a key; None if each value fits. Other keys refuse an empty object."""


@pytest.mark.parametrize(("read", "message", "key", "value"), TYPED)
def test_a_typed_key_that_fits_its_field_is_refused_in_extra_json(read, message, key, value):
    wire = type(message).FromString(message.SerializeToString())
    wire.extra_json = f'{{"{key}":{value}}}'
    assert named(read, wire, "m").endswith("extra_json")
    unfit = UNTYPED.get(key, "{}")
    if unfit is not None and type(message) is not pb.SamplingParams:
        wire.extra_json = f'{{"{key}":{unfit}}}'
        read(wire, "m")


def test_null_content_is_a_message_without_a_value():
    """A boolean would have a second value, false, that promises nothing."""
    field = pb.Message.DESCRIPTOR.fields_by_name["null_content"]
    assert field.message_type.full_name == "osmosis.rollout.v1.NullContent"
    assert not field.message_type.fields
    assert message_from_wire(pb.Message(role="user", null_content=pb.NullContent()), "m") == {
        "role": "user",
        "content": None,
    }


@pytest.mark.parametrize(("message", "place"), REPEATED)
def test_a_key_in_a_field_and_in_extra_json_is_refused(message, place):
    assert named(message_from_wire, message, "m") == place


def test_a_tools_key_in_a_field_and_in_extra_json_is_refused():
    function = pb.FunctionSchema(parameters_json="{}", extra_json='{"parameters":{}}')
    assert named(tool_from_wire, pb.Tool(function=function), "t") == "t.function.extra_json"
    assert named(params_from_wire, pb.SamplingParams(seed=1, extra_json='{"seed":1}'), "s") == "s.extra_json"
    assert named(params_from_wire, pb.SamplingParams(stop=["a"], extra_json='{"stop":"a"}'), "s") == "s.extra_json"
    assert named(usage_from_wire, pb.Usage(total_tokens=1, extra_json='{"total_tokens":1}'), "u") == "u.extra_json"


@pytest.mark.parametrize("role", ["", "robot", "User"])
def test_an_unknown_role_is_refused_when_it_is_received(role):
    assert named(message_from_wire, pb.Message(role=role), "messages[3]") == "messages[3].role"


OUT_OF_BOUNDS = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", True),
    ("temperature", "hot"),
    ("temperature", 10**400),
    ("top_p", -1e-9),
    ("top_p", 1.5),
    ("top_p", math.nan),
    ("top_p", [1]),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1.0),
    ("max_tokens", True),
    ("max_tokens", "9"),
]


@pytest.mark.parametrize(("key", "value"), OUT_OF_BOUNDS, ids=lambda value: str(value)[:20])
def test_sampling_parameters_out_of_bounds_are_refused_by_name(key, value):
    assert named(params_to_wire, {"seed": 1, key: value}) == f"sampling.{key}"
    if isinstance(value, float) and not math.isfinite(value):
        assert named(params_from_wire, pb.SamplingParams(**{key: value}), "sampling") == f"sampling.{key}"
    else:
        message = pb.SamplingParams(extra_json=json.dumps({key: value}))
        typed = type(value) is (int if key == "max_tokens" else float)
        assert named(params_from_wire, message, "sampling") == ("sampling.extra_json" if typed else f"sampling.{key}")


@pytest.mark.parametrize(
    "params", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 1.5}, {"top_p": math.nan}, {"max_tokens": 0}]
)
def test_typed_sampling_parameters_out_of_bounds_are_refused_by_name(params):
    (key,) = params
    assert named(params_from_wire, pb.SamplingParams(**params), "sampling") == f"sampling.{key}"


def test_a_negative_count_is_refused_in_a_field_and_in_extra_json():
    assert named(usage_from_wire, pb.Usage(completion_tokens=-1), "usage") == "usage.completion_tokens"
    assert named(usage_from_wire, pb.Usage(extra_json='{"prompt_tokens":-1}'), "usage").startswith("usage.")


SCALARS = st.none() | st.integers() | st.floats() | st.binary(max_size=2) | st.text(max_size=3)
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["\ud800", "a\udc00b"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=2) | st.sampled_from([1, None, "\ud800"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(["content", "tool_calls", "name", "vendor", "\ud800", 1])


@given(st.dictionaries(KEYS, ANYTHING, max_size=3))
def test_a_checked_message_can_be_serialized(message):
    """copy_message refuses with InvalidArgument, or what it returns survives."""
    try:
        checked = copy_message({"role": "user", **message}, "m")
    except InvalidArgument:
        return
    wire = message_to_wire(checked)
    assert message_from_wire(pb.Message.FromString(wire.SerializeToString()), "m") == checked


@pytest.mark.parametrize("more", [0, 1])
def test_the_items_of_a_list_are_bounded(more):
    """Messages with their tool calls and parts: that many, and not one more."""
    message = pb.Message(role="assistant")
    message.tool_calls.extend([pb.ToolCall()] * 1000)
    message.parts.parts.extend([pb.ContentPart()] * 1000)
    messages = [message] * 32 + [pb.Message(role="user")] * (MAX_ITEMS - 32 * 2001 + more)
    long = pb.Message(role="assistant")
    long.tool_calls.extend([pb.ToolCall()] * (MAX_ITEMS + more))
    rows = [
        (messages_from_wire, messages, "messages"),
        (message_from_wire, long, "messages.tool_calls"),
        (tools_from_wire, [pb.Tool()] * (MAX_ITEMS + more), "messages"),
    ]
    for read, value, field in rows:
        if not more:
            read(value, "messages")
            continue
        with pytest.raises(InvalidArgument) as caught:
            read(value, "messages")
        assert caught.value.violations[0][0] == field
