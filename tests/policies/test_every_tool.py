"""The mock that calls every offered tool, and the arguments that it makes from schemas."""

import json
import re

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.policies import EveryToolMock
from osmosis_grpc.policies.every_tool import arguments_for
from osmosis_grpc.protocol.types import ChatPurpose, ChatRequest, jsontext
from osmosis_grpc.protocol.types.messages import copy_message

QUESTION = {"role": "user", "content": "go"}


def one(**schema):
    """A schema with one property, v."""
    return {"type": "object", "properties": {"v": schema}, "required": ["v"]}


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["name"],
}

SCHEMAS = {
    "nothing": {},
    "an object of anything": {"type": "object"},
    "strict": {"type": "object", "properties": {}, "additionalProperties": False},
    "text": one(type="string"),
    "a short text": one(type="string", maxLength=2),
    "a long text": one(type="string", minLength=20),
    "an enum": one(type="string", enum=["c", "f"]),
    "a const": one(const={"a": [1]}),
    "a default": one(type="integer", default=7),
    "examples": one(type="string", examples=["Rome", "Oslo"]),
    "a date": one(type="string", format="date"),
    "a uuid": one(type="string", format="uuid"),
    "an unknown format": one(type="string", format="zip"),
    "a pattern": one(type="string", pattern="^[a-f0-9]+$", minLength=8, maxLength=8),
    "a number": one(type="number"),
    "a whole number": one(type="integer"),
    "bounds": one(type="integer", minimum=5, maximum=6),
    "below": one(type="number", maximum=-3.5),
    "exclusive": one(type="number", exclusiveMinimum=0, exclusiveMaximum=1),
    "exclusive whole": one(type="integer", exclusiveMinimum=1, exclusiveMaximum=3),
    "a multiple": one(type="integer", multipleOf=5, minimum=12),
    "a half": one(type="number", multipleOf=0.5, minimum=3),
    "a boolean": one(type="boolean"),
    "null": one(type="null"),
    "perhaps null": one(type=["null", "integer"]),
    "optional": one(anyOf=[{"type": "string"}, {"type": "null"}], default=None),
    "one of": one(
        oneOf=[{"type": "null"}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]
    ),
    "all of": one(
        allOf=[
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ]
    ),
    "a list": one(type="array", items={"type": "integer"}, minItems=3, uniqueItems=True),
    "an empty list": one(type="array", items={"type": "integer"}, maxItems=0),
    "a tuple": one(type="array", prefixItems=[{"type": "string"}, {"type": "boolean"}], items=False, minItems=2),
    "a list of an enum": one(type="array", items={"enum": ["x", "y", "z"]}, minItems=2, uniqueItems=True),
    "nested": one(type="object", properties={"a": one(type="number")}, required=["a"]),
    "a reference": {"$defs": {"tree": TREE}, **one(**{"$ref": "#/$defs/tree"})},
    "a required recursion": {
        "$defs": {"tree": TREE | {"required": ["name", "kids"]}},
        **one(**{"$ref": "#/$defs/tree"}),
    },
    "anything": one(),
    "a true schema": {"type": "object", "properties": {"v": True}, "required": ["v"]},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_arguments_fit_their_schema(schema):
    arguments = arguments_for(schema)
    jsonschema_rs.validate(schema, arguments)
    assert set(schema.get("properties", ())) <= set(arguments), "what is optional is given, too"
    assert arguments_for(schema) == arguments


def test_an_author_chooses_the_arguments():
    assert arguments_for(one(type="string", examples=["Rome"], default="x")) == {"v": "Rome"}
    assert arguments_for(one(type="integer", default=3)) == {"v": 3}


WORDS = ("integer", "number", "string", "boolean", "null", "array", "object")
NUMBERS = st.integers(-20, 20) | st.floats(-5, 5).map(lambda value: round(value, 1))
GOOD = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(WORDS[:5])}),
        st.tuples(st.integers(-20, 20), st.integers(0, 20)).map(
            lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
        ),
        st.tuples(NUMBERS, st.floats(0.1, 5)).map(
            lambda pair: {"type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": sum(pair)}
        ),
        st.tuples(st.integers(1, 9), st.integers(-30, 30)).map(
            lambda pair: {"type": "integer", "multipleOf": pair[0], "minimum": pair[1]}
        ),
        st.tuples(st.integers(0, 12), st.integers(0, 12)).map(
            lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
        ),
        st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 3)).map(lambda p: {"type": "array", "items": p[0], "minItems": p[1]}),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).map(
            lambda properties: {"type": "object", "properties": properties, "required": sorted(properties)}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda ways: {"anyOf": ways}),
        inner.map(lambda schema: {"allOf": [schema]}),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), GOOD, max_size=4))
def test_arguments_fit_any_schema_of_these_parts(properties):
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    jsonschema_rs.validate(schema, arguments_for(schema))


KEYWORDS = """
    type properties required enum const default examples minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minLength maxLength pattern format items prefixItems minItems maxItems additionalProperties
    anyOf oneOf allOf $ref $defs
""".split()  # noqa: SIM905
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([*WORDS, "#", "#/$defs/a"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=5),
    max_leaves=12,
)


@given(JSON)
def test_no_schema_makes_it_raise(schema):
    arguments = arguments_for(schema)
    assert isinstance(arguments, dict)
    jsontext.copy(arguments, "arguments")


def test_a_schema_without_a_bottom_has_arguments_of_some_size():
    wide = {"type": "object", "properties": {f"c{n}": {"$ref": "#/$defs/a"} for n in range(60)}}
    assert len(json.dumps(arguments_for({"$defs": {"a": wide}, "properties": {"v": {"$ref": "#/$defs/a"}}}))) < 100_000
    assert len(json.dumps(arguments_for(one(type="string", minLength=10**9)))) < 20_000
    assert len(json.dumps(arguments_for(one(type="array", items={"type": "integer"}, minItems=10**9)))) < 20_000


@pytest.mark.parametrize("pattern", [r"^\d{3}$", "^[A-Z]{2}$", "^[a-f0-9]+$", r"^\d{4}-\d\d-\d\d$", "@", r"\.txt$"])
def test_a_text_matches_a_usual_pattern(pattern):
    assert re.search(pattern, arguments_for(one(type="string", pattern=pattern))["v"])


@given(st.text("ab1[]()^$|?*+{},.\\d-", max_size=12))
def test_no_pattern_makes_it_raise(pattern):
    assert isinstance(arguments_for(one(type="string", pattern=pattern))["v"], str)


# The mock


def tools(*names):
    return [{"type": "function", "function": {"name": name, "parameters": one(type="integer")}} for name in names]


async def play(mock, offered, turns=12, **more):
    """What it calls, turn by turn, and its last word."""
    messages, called = [QUESTION], []
    for number in range(1, turns):
        reply = await mock(ChatRequest(rollout_id="r", messages=messages, chat_number=number, tools=offered, **more))
        assert copy_message(reply.message, "m") == reply.message
        messages.append(reply.message)
        if not reply.message.get("tool_calls"):
            return called, reply.message["content"]
        called.append([call["function"]["name"] for call in reply.message["tool_calls"]])
        for call in reply.message["tool_calls"]:
            assert json.loads(call["function"]["arguments"]) == {"v": 1}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
    return called, None


async def test_the_mock_calls_one_tool_and_then_the_others():
    assert await play(EveryToolMock("over"), tools("a", "b", "c")) == ([["a"], ["b", "c"]], "over")
    assert await play(EveryToolMock("over"), tools("a")) == ([["a"]], "over")
    assert await play(EveryToolMock("over"), []) == ([], "over")
    assert await play(EveryToolMock("over"), None) == ([], "over")


async def test_the_mock_heeds_the_tool_choice_and_leaves_judges_alone():
    named = {"type": "function", "function": {"name": "b"}}
    assert await play(EveryToolMock(), tools("a", "b"), params={"tool_choice": named}) == (
        [["b"]],
        "I called every tool.",
    )
    assert (await play(EveryToolMock(), tools("a"), params={"tool_choice": "none"}))[0] == []
    assert (await play(EveryToolMock(), tools("a"), purpose=ChatPurpose.JUDGE))[0] == []


async def test_an_agent_that_forgets_its_calls_gets_an_answer_all_the_same():
    mock = EveryToolMock("over")
    replies = [
        await mock(ChatRequest(rollout_id="r", messages=[QUESTION], chat_number=n, tools=tools("a"))) for n in (8, 9)
    ]
    assert replies[0].message["tool_calls"]
    assert replies[1].message["content"] == "over"


async def test_the_same_chat_has_the_same_reply():
    request = ChatRequest(rollout_id="r", messages=[QUESTION], chat_number=1, tools=tools("a", "b"))
    first, second = await EveryToolMock()(request), await EveryToolMock()(request)
    assert first == second


@pytest.mark.parametrize(
    ("description", "value"),
    [
        ("The name of the city, for example Oslo.", "Oslo"),
        ('A sum, e.g. "2 + 3 * 4", of numbers.', "2 + 3 * 4"),
        ("A number such as 3.5 or 4.", "3.5"),
        ("A day (for example: 31 January) of a year", "31 January"),
        ("It is for example", "text"),
    ],
)
def test_the_description_of_a_text_can_have_an_example(description, value):
    assert arguments_for(one(type="string", description=description)) == {"v": value}
    assert arguments_for(one(type="string", description=description, examples=["Rome"])) == {"v": "Rome"}


def test_the_name_of_a_text_can_say_what_it_is():
    names = ("expression", "Path", "url", "city")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    made = {"expression": "2 + 3", "Path": "file.txt", "url": "https://example.com/", "city": "text"}
    assert arguments_for(schema) == made
