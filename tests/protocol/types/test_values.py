"""The values: what they take and what they refuse, by name."""

import copy
import math
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol import errors, types
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Cause, Failure, Tensor, TokenBlock
from osmosis_grpc.protocol.types.messages import tool_dicts
from osmosis_grpc.protocol.types.outcome import MAX_FAILURE_TEXT, clip
from osmosis_grpc.protocol.types.requests import check_id, own_params
from osmosis_grpc.protocol.types.tool_models import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)


def named(call, *args, **kwargs) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args, **kwargs)
    return refusal.value.violations[0][0]


# Token blocks


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], dtype=">u8"), range(1, 3)])
def test_a_block_of_anything_array_like(ids):
    block = TokenBlock.of(ids, [-1, None] if isinstance(ids, list) else [-1.0, np.nan])
    assert (block.ids.dtype, block.logprobs.dtype) == (np.dtype("<u4"), np.dtype("<f4"))
    assert block.ids.tolist() == [1, 2]
    assert block.logprobs[0] == -1.0
    assert math.isnan(block.logprobs[1])
    assert not block.complete
    assert TokenBlock.of(ids, [-1, 0]).complete
    assert not TokenBlock.of(ids).complete


@pytest.mark.parametrize("edge", [0, 2**32 - 1])
def test_ids_are_32_bits(edge):
    assert TokenBlock.of([edge]).ids.tolist() == [edge]


BAD_IDS = [
    [-1],
    [2**32],
    [2**64],
    [-(2**70)],
    [1.0],
    [True],
    ["1"],
    [None],
    [[1, 2], [3, 4]],
    [[1], [2, 3]],
    "12",
    7,
    {1: 2},
]


@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
def test_values_that_are_no_ids_are_refused(bad):
    assert "ids" in named(TokenBlock.of, bad)


BAD_LOGPROBS = [
    [],
    [-1.0],
    [-1.0] * 3,
    [0.0011, -1.0],
    [math.inf, -1.0],
    [-math.inf, -1.0],
    ["a", "b"],
    [[-1.0], [-1.0]],
    [[-1.0], [-1.0, -2.0]],
    [-1.0, {}],
    -1.0,
    [-1.0, 1e300],
    [-1.0, -1e300],
]


@pytest.mark.parametrize("bad", BAD_LOGPROBS, ids=repr)
def test_values_that_are_no_logprobs_are_refused(bad):
    assert "logprobs" in named(TokenBlock.of, [1, 2], bad)


def test_a_little_above_zero_is_rounding():
    assert TokenBlock.of([1], [1e-3]).logprobs[0] == np.float32(1e-3)


def test_blocks_are_compared_by_their_arrays():
    block = TokenBlock.of([1, 2], [-1.0, np.nan], {"x": Tensor.of([1, 2])})
    assert block == TokenBlock.of([1, 2], [-1.0, np.nan], {"x": Tensor.of([1, 2])})
    others = [
        TokenBlock.of([1, 3], [-1.0, np.nan], {"x": Tensor.of([1, 2])}),
        TokenBlock.of([1, 2], [-1.0, -2.0], {"x": Tensor.of([1, 2])}),
        TokenBlock.of([1, 2], None, {"x": Tensor.of([1, 2])}),
        TokenBlock.of([1, 2], [-1.0, np.nan], {"x": Tensor.of([1, 3])}),
        TokenBlock.of([1, 2], [-1.0, np.nan]),
    ]
    assert all(block != other for other in others)
    assert block != "block"
    assert block.nbytes == 8 + 8 + 16


# Tensors


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i8"])
def test_a_tensor_keeps_its_array(dtype):
    array = np.array([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    for given_array in (array, np.asfortranarray(array), array[:, ::-1]):
        tensor = Tensor.of(given_array)
        assert tensor.shape == (2, 3)
        assert np.array_equal(tensor.numpy(), given_array)
        tensor.check(2, "x")
        assert named(tensor.check, 3, "x") == "x.shape"
        assert named(replace(tensor, data=tensor.data + b"0").check, 2, "x") == "x.data"
        assert named(replace(tensor, dtype="float128").check, 2, "x") == "x.type"


@pytest.mark.parametrize(
    "bad", [["a"], [object()], [1 + 2j], np.array(["2026"], dtype="M8")], ids=["text", "object", "complex", "date"]
)
def test_a_tensor_with_wrong_parts_is_refused(bad):
    assert named(Tensor.of, bad) == "extras"


def test_bfloat16_is_read_as_raw_uint16():
    assert Tensor(dtype="bfloat16", shape=(1,), data=b"\x80\x3f").numpy().tolist() == [0x3F80]


# Tools


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x-vendor": [None]}}}


def test_tools_as_dicts_are_copies():
    given_tools = copy.deepcopy([TOOL])
    made = tool_dicts(given_tools)
    given_tools[0]["function"]["name"] = "changed"
    assert made == [TOOL]
    assert tool_dicts(None) == tool_dicts([]) == tool_dicts(()) == []


def test_tool_schemas_keep_unknown_keys():
    schema = OpenAIFunctionToolSchema(
        function=OpenAIFunctionSchema(
            name="f",
            description="d",
            parameters=OpenAIFunctionParametersSchema(
                properties={"a": OpenAIFunctionPropertySchema(type="number", minimum=1, anyOf=[{"b": None}])},
                required=["a"],
                additionalProperties=False,
            ),
        )
    )
    (made,) = tool_dicts([schema])
    parameters = made["function"]["parameters"]
    assert (made["type"], made["function"]["name"], made["function"]["strict"]) == ("function", "f", False)
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["a"]["minimum"] == 1
    assert "enum" not in parameters["properties"]["a"]


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ({"a": 1}, "tools"),
        ("f", "tools"),
        (7, "tools"),
        ([TOOL, "f"], "tools[1]"),
        ([None], "tools[0]"),
        ([{1: 2}], "tools[0]"),
    ],
    ids=str,
)
def test_values_that_are_no_tools_are_refused(tools, field):
    assert named(tool_dicts, tools) == field


# Ids and durations


@pytest.mark.parametrize(
    "bad",
    ["", " ", "\u3000", "x" * 257, ".", "..", "a/b", "a\\b", "a\0b", "a\n", "\x7f", "\x9f", "\u2029", "\ud800"],
    ids=ascii,
)
def test_a_bad_id_is_refused(bad):
    assert named(check_id, bad, "rollout_id") == "rollout_id"


@pytest.mark.parametrize("good", ["a", "x" * 256, "...", "a b", "字", "a.b:c-d_e"], ids=ascii)
def test_a_good_id_passes(good):
    check_id(good, "rollout_id")


# Failures


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "boundary", "retryable"),
    [
        (ValueError("x"), "agent", False),
        (KeyboardInterrupt("x"), "agent", False),
        (errors.ToolExecutionError("x"), "tool", False),
        (errors.ToolArgumentError("x"), "tool", False),
        (errors.Unavailable("x"), "trainer", True),
        (errors.DeadlineExceeded("x"), "trainer", True),
        (errors.Internal("x"), "trainer", False),
        (errors.RolloutEndedError("x"), "agent", False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_names_its_boundary(error, boundary, retryable):
    failure = Failure.of(error)
    text = "x" if isinstance(error, errors.OsmosisRolloutError) else f"{type(error).__name__}: x"
    assert (failure.boundary, failure.message, failure.retryable) == (boundary, text, retryable)
    assert failure.causes == (Cause(type(error).__name__, "x"),)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (KeyError("score"), "KeyError: 'score'"),
        (IndexError(), "IndexError"),
        (ValueError("ValueError: once"), "ValueError: once"),
        (ExceptionGroup("two", [errors.Internal("x")]), "ExceptionGroup: two (1 sub-exception)"),
    ],
)
def test_a_failure_begins_with_the_type_of_the_exception(error, text):
    failure = Failure.of(error)
    assert failure.message == text
    outcome = types.RolloutOutcome(rollout_id="r", status=types.OutcomeStatus.FAILED, failure=failure)
    assert types.OutcomeSummary.of(outcome).failure_summary == text


def test_a_failure_tells_the_chain():
    try:
        try:
            try:
                raise KeyError("innermost")
            except KeyError as error:
                raise OSError("middle") from error
        except OSError:
            raise errors.ToolExecutionError("outer")
    except errors.ToolExecutionError as error:
        failure = Failure.of(error)
    assert [cause.type for cause in failure.causes] == ["ToolExecutionError", "OSError", "KeyError"]
    assert [cause.message for cause in failure.causes] == ["outer", "middle", "'innermost'"]


def test_a_chain_that_was_cut_or_bites_its_tail():
    hidden = ValueError("shown")
    hidden.__context__, hidden.__suppress_context__ = OSError("hidden"), True
    assert [cause.message for cause in Failure.of(hidden).causes] == ["shown"]
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert [cause.message for cause in Failure.of(one).causes] == ["one", "two"]
    long = ValueError("0")
    for number in range(1, 1000):
        outer = ValueError(str(number))
        outer.__cause__ = long
        long = outer
    assert 2 <= len(Failure.of(long).causes) < 100


@pytest.mark.parametrize(
    "error", [ValueError(), ValueError(""), Mute(), TimeoutError()], ids=lambda e: type(e).__name__
)
def test_a_failure_is_never_without_words(error):
    failure = Failure.of(error)
    assert failure.message
    assert type(error).__name__ in {failure.message, *(cause.type for cause in failure.causes)}


def test_a_failure_can_travel():
    failure = Failure.of(ValueError("\ud800" + "字" * MAX_FAILURE_TEXT))
    for text in (failure.message, failure.causes[0].message):
        assert len(text.encode()) <= MAX_FAILURE_TEXT


@given(st.text(max_size=5) | st.just("\udfff"), st.integers(0, 400))
def test_clip_cuts_and_mends(text, times):
    limit = 640
    made = clip(text * times, limit)
    assert len(made.encode()) <= limit
    mended = text.replace("\udfff", "\ufffd") * times
    if len(mended.encode()) <= limit:
        assert made == mended
    else:
        assert made.endswith("[cut]")
        assert len(made.encode()) > limit - 10


# All of them


def test_every_public_value_is_frozen():
    values = [value for value in vars(types).values() if is_dataclass(value)]
    assert len(values) > 15
    for value in values:
        made = object.__new__(value)
        with pytest.raises(FrozenInstanceError):
            setattr(made, fields(value)[0].name, 1)


def test_sampling_parameters_are_as_they_come_back_off_the_wire():
    given = {"temperature": 1, "top_p": 1, "max_tokens": 5, "stop": ["x"]}
    own = own_params(given, "params")
    assert [type(own[key]) for key in ("temperature", "top_p", "max_tokens")] == [float, float, int]
    own["stop"].append("y")
    assert given["stop"] == ["x"]
