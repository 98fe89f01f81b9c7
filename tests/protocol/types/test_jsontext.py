"""JSON values: a copy is checked, plain and independent; equal values, and only these, have equal canonical texts."""

import contextlib
import enum
import gc
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext


def named(call, *args) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args)
    return refusal.value.violations[0][0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def scrambled(value):
    """Change a value in place, everywhere."""
    for item in list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else ():
        scrambled(item)
    if isinstance(value, dict):
        value.clear()
        value["changed"] = True
    elif isinstance(value, list):
        value.append("changed")


@given(JSON)
def test_a_copy_is_equal_and_independent(value):
    before = json.dumps(value)
    made = jsontext.copy(value, "x")
    assert json.dumps(made) == before
    scrambled(value)
    assert json.dumps(made) == before
    assert json.dumps(jsontext.parse(jsontext.render(made), "x")) == before


@given(JSON, JSON)
def test_canonical_texts_are_equal_exactly_for_equal_values(one, other):
    def number(text):
        return int(float(text)) if float(text).is_integer() else float(text)  # 1 and 1.0 are equal

    def exact(value):
        return json.dumps(json.loads(json.dumps(value), parse_float=number), sort_keys=True)

    assert (jsontext.canonical(one) == jsontext.canonical(other)) == (exact(one) == exact(other))
    if isinstance(one, dict):
        assert jsontext.canonical(dict(reversed(one.items()))) == jsontext.canonical(one)


class Colour(str, enum.Enum):  # noqa: UP042  the older kind, which str() writes otherwise
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Words(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


@pytest.mark.parametrize(
    ("given_value", "plain"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        (Colour.RED, "red"),
        (enum.StrEnum("Kind", ["A"]).A, "a"),
        (Level.HIGH, 3),
        (Words("as it is"), "as it is"),
        (np.float64(1.5), 1.5),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (type("Sub", (dict,), {})(a=[1]), {"a": [1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_made_of_plain_types(given_value, plain):
    """Subclasses travel as json.dumps would write them."""
    made = jsontext.copy(given_value, "x")
    assert made == plain
    assert jsontext.render(made) == json.dumps(plain, separators=(",", ":"))
    assert type(made) is type(plain)


@pytest.mark.parametrize(
    "bad",
    [
        math.nan,
        np.float64("inf"),
        np.int64(1),
        {1: 2},
        {None: 1},
        {("a",): 1},
        {1, 2},
        b"x",
        object(),
        1j,
        "\ud800",
        10**5000,
    ],
    ids=lambda bad: ascii(bad)[:20] if not isinstance(bad, int) else "too many digits",
)
def test_a_value_that_is_no_json_is_refused(bad):
    assert named(jsontext.copy, bad, "x") == "x"
    assert named(jsontext.copy, {"a": [bad]}, "x").startswith("x")


def test_a_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    assert named(jsontext.copy, value, "x") == "x"


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_an_unparsed_object_has_the_digest_of_its_value(value):
    text = json.dumps(dict(reversed(value.items())), indent=1)
    made = jsontext.Unparsed.checked(text, "x")
    assert made.digest == jsontext.digest(value) == jsontext.Unparsed.checked(jsontext.render(value), "x").digest


def test_numbers_of_equal_values_have_equal_digests():
    assert (
        jsontext.Unparsed.checked('{"a":[1.0,-0.0,1e3]}', "x").digest
        == jsontext.Unparsed.checked('{"a":[1,0,1000]}', "x").digest
    )


@pytest.mark.parametrize("read", [jsontext.parse, jsontext.Unparsed.checked])
def test_a_megabyte_of_lists_is_read_without_passes_of_the_garbage_collector(read):
    passes = []

    def count(phase, info):
        passes.append(phase)

    text = '{"x":[' + ",".join(["[]"] * 100_000) + "]}"
    gc.collect()
    gc.callbacks.append(count)
    try:
        value = read(text, "x")
        assert len(passes) <= 2, "one pass, when all is read"
    finally:
        gc.callbacks.remove(count)
    assert value
    assert gc.isenabled()


@pytest.mark.parametrize("text", ['{"x":1}', "[" * 20_000, '{"x":NaN}' + " " * 20_000])
def test_a_collector_that_is_off_stays_off(text):
    gc.disable()
    try:
        with contextlib.suppress(InvalidArgument):
            jsontext.parse(text, "x")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        (json.dumps("[" * 300 + '\\"['), 0),
        (json.dumps(["]" * 300, "\\", '"[', [[]]]), 3),
        (json.dumps({"[" * 300: {"a\\\\": "]"}}), 2),
    ],
)
def test_brackets_in_strings_are_no_levels(text, levels):
    jsontext.parse(text, "x", levels)
    if levels:
        assert named(jsontext.parse, text + " " * 300, "x", levels - 1) == "x"
