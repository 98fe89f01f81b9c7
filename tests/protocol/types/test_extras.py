"""Extras of token blocks, and their way into segments, rectangular and ragged."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatPurpose, ChatResponse, RaggedTensor, Segment, Tensor, TokenBlock
from osmosis_grpc.protocol.types.extras import LAYOUTS, MAX_EXTRAS, MAX_NAME, check_extras
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder
from osmosis_grpc.protocol.types.tensors import MAX_DIMENSIONS, TENSOR_DTYPES
from tests.made_extras import MAKERS, made, right

ids = np.uint32
UINT32 = "uint32"


def refused(call, *args, **named) -> str:
    """Returns the field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args, **named)
    return refusal.value.violations[0][0]


def sized(dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor.of(np.zeros(shape, dtype=dtype))


GOOD = {
    "routed_experts": [sized("uint8", (3, 2, 4)), sized("int16", (3, 1, 1)), sized("int32", (3, 0, 2))],
    "top_logprobs": [sized("float32", (3, 5))],
    "top_logprob_ids": [sized("uint32", (3, 5))],
    "sampling_mask": [RaggedTensor.of([[1], [], [2, 3]], UINT32)],
    "entropy": [sized("float32", (3,))],
    "temperature": [sized("float32", (3,))],
    "reference_logprobs": [sized("float32", (3,))],
    "anything": [sized("float64", (3, 2)), sized("bool", (3,)), RaggedTensor.of([[0.5], [], []], "float16")],
}
BAD = {
    "routed_experts": [sized("uint16", (3, 2, 4)), sized("uint8", (3, 8)), RaggedTensor.of([[1], [], []], "uint8")],
    "top_logprobs": [sized("float64", (3, 5)), sized("float32", (3,))],
    "top_logprob_ids": [sized("int32", (3, 5)), sized("uint32", (3, 5, 1))],
    "sampling_mask": [sized("uint32", (3, 2)), RaggedTensor.of([[1], [], []], "int64")],
    "entropy": [sized("float64", (3,)), sized("float32", (3, 1))],
    "temperature": [sized("float16", (3,))],
    "reference_logprobs": [RaggedTensor.of([[0.5], [], []], "float32")],
}


def test_every_fixed_name_is_in_the_tables():
    assert set(GOOD) - {"anything"} == set(BAD) == set(LAYOUTS)


@pytest.mark.parametrize(("name", "extra"), [(name, each) for name, all_good in GOOD.items() for each in all_good])
def test_an_extra_with_the_right_layout_is_accepted(name, extra):
    assert TokenBlock.of([1, 2, 3], extras={name: extra}).extras[name] == extra


@pytest.mark.parametrize(("name", "extra"), [(name, each) for name, all_bad in BAD.items() for each in all_bad])
def test_an_extra_with_a_wrong_layout_is_refused_by_name(name, extra):
    assert refused(TokenBlock.of, [1, 2, 3], extras={name: extra}) == f"tokens.extras[{name}]"


def test_top_logprobs_and_their_ids_have_one_shape():
    extras = {"top_logprobs": sized("float32", (1, 3)), "top_logprob_ids": sized("uint32", (1, 2))}
    assert refused(TokenBlock.of, [1], extras=extras) == "tokens.extras[top_logprob_ids]"


def test_names_are_bounded():
    one = sized("int8", (1,))
    assert refused(TokenBlock.of, [1], extras={str(n): one for n in range(MAX_EXTRAS + 1)}) == "tokens.extras"
    for name in ("", "a\n", "x" * (MAX_NAME + 1)):
        assert refused(TokenBlock.of, [1], extras={name: one}).startswith("tokens.extras[")
    assert refused(TokenBlock.of, [1], extras={"x": np.zeros(1)}) == "tokens.extras[x]"


def test_prompt_extras_need_one_row_for_each_id_of_the_prompt():
    reply = ChatResponse(message={"role": "assistant"}, prompt_extras={"x": sized("int8", (2,))})
    assert refused(reply.check) == "prompt_extras"
    assert refused(replace(reply, prompt_ids=np.arange(3, dtype=ids)).check) == "prompt_extras[x].tensor.shape"
    replace(reply, prompt_ids=np.arange(2, dtype=ids)).check()


HUGE = 2**32 - 1
TENSORS = {
    "shape": [
        (1,) * (MAX_DIMENSIONS + 1),
        (HUGE,) * MAX_DIMENSIONS,
        (0, HUGE, HUGE, HUGE),  # no elements, but NumPy refuses it
        (),
        (1, 1, 0, HUGE, HUGE, HUGE),
    ],
    "data": [(1, HUGE), (1, 2), (1, 0), (2,)],
}


@pytest.mark.parametrize(("field", "shape"), [(field, shape) for field, shapes in TENSORS.items() for shape in shapes])
def test_an_impossible_shape_is_refused(field, shape):
    assert refused(Tensor(dtype="int8", shape=shape, data=b"1").check, 1, "x") == f"x.{field}"


def test_a_bool_is_0_or_1():
    assert refused(Tensor(dtype="bool", shape=(2,), data=b"\0\2").check, 2, "x") == "x.data"


# Ragged tensors.


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), max_size=8))
def test_a_ragged_tensor_has_the_rows_it_was_made_of(rows):
    ragged = RaggedTensor.of(rows, UINT32)
    ragged.check(len(rows), "x")
    assert len(ragged) == len(rows)
    assert [row.tolist() for row in ragged.numpy()] == rows
    assert [ragged.row(i).tolist() for i in range(len(rows))] == rows
    assert [ragged.row(-1 - i).tolist() for i in range(len(rows))] == rows[::-1]
    assert ragged == RaggedTensor.of(rows, UINT32)
    assert ragged.nbytes == 4 * (sum(map(len, rows)) + len(rows) + 1)
    for index in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            ragged.row(index)


def test_rows_of_a_ragged_tensor_may_have_more_dimensions():
    rows = [np.ones((2, 3), "float32"), np.zeros((0, 3), "float32")]
    assert [row.shape for row in RaggedTensor.of(rows).numpy()] == [(2, 3), (0, 3)]


@pytest.mark.parametrize("rows", [[[1], [0.5]], [[[1, 2]], [[1]]], [["a"]], [5], [[None]], "ab", [[1 << 70]]])
def test_rows_of_several_types_or_shapes_are_refused(rows):
    assert refused(RaggedTensor.of, rows) == "extras"


def test_a_ragged_tensor_of_an_unknown_type_is_refused():
    assert refused(RaggedTensor.of, [[1]], "complex64") == "extras"
    assert refused(RaggedTensor.of, [[1]], "bfloat16") == "extras"


OFFSETS = st.lists(st.integers(0, 12) | st.sampled_from([2**31, 2**32 - 1]), max_size=6)


@given(OFFSETS, st.integers(0, 5), st.integers(0, 12))
def test_offsets_are_right_or_refused(offsets, rows, elements):
    ragged = RaggedTensor(values=sized("int8", (elements,)), offsets=np.array(offsets, dtype=ids))
    right = (
        len(offsets) == rows + 1
        and offsets[0] == 0
        and offsets[-1] == elements
        and all(one <= other for one, other in pairwise(offsets))
    )
    if right:
        ragged.check(rows, "x")
        assert sum(map(len, ragged.numpy())) == elements
    else:
        assert refused(ragged.check, rows, "x") in ("x.offsets", "x.values.shape")


# Segments.


def reply(prompt, tokens, *, of_prompt=(), of_reply=(), prefix=0) -> ChatResponse:
    """Returns a reply with these extras. `prompt` is whole, and its first `prefix` ids are left out."""
    return ChatResponse(
        message={"role": "assistant"},
        tokens=TokenBlock.of(tokens, [-1.0] * len(tokens), made(of_reply, tokens, len(prompt))),
        prompt_ids=np.array(prompt[prefix:], dtype=ids),
        prompt_extras=made(of_prompt, prompt[prefix:], prefix),
        prompt_prefix=prefix,
    )


def segments_of(*chats) -> tuple[Segment, ...]:
    assembler = SegmentBuilder()
    for number, (parent, response) in enumerate(chats, start=1):
        response.check()
        assembler.add(number, parent, response, ChatPurpose.POLICY)
    for segment in assembler.segments():
        segment.check("segment")
    return assembler.segments()


def test_extras_of_prompts_and_replies_are_joined():
    (segment,) = segments_of(
        (0, reply([1, 2], [3], of_prompt=MAKERS, of_reply=MAKERS)),
        (1, reply([1, 2, 3, 4], [5, 6], of_prompt=MAKERS, of_reply=MAKERS, prefix=3)),
    )
    assert (set(segment.token_extras), segment.sampled_extras, segment.incomplete_extras) == (set(MAKERS), {}, ())
    assert right(segment)
    assert segment.nbytes == 4 * 6 + 4 * 3 + sum(extra.nbytes for extra in segment.token_extras.values())


def test_extras_of_replies_only_have_a_row_for_each_sampled_token():
    (segment,) = segments_of(
        (0, reply([1, 2], [3], of_reply=MAKERS)),
        (1, reply([1, 2, 3, 4], [5, 6], of_reply=MAKERS, of_prompt=["entropy"])),
    )
    assert (set(segment.sampled_extras), segment.token_extras, segment.incomplete_extras) == (set(MAKERS), {}, ())
    assert right(segment)


def test_an_extra_that_some_reply_lacks_is_named():
    (segment,) = segments_of(
        (0, reply([1], [2])),
        (1, reply([1, 2], [3], of_reply=["entropy", "routed_experts"])),
        (2, reply([1, 2, 3, 9], [4], of_reply=["entropy"], of_prompt=["sampling_mask"])),
    )
    assert (segment.sampled_extras, segment.token_extras) == ({}, {})
    assert segment.incomplete_extras == ("entropy", "routed_experts", "sampling_mask")
    for name in (*MAKERS, "x"):
        assert refused(segment.aligned_extra, name) == f"extras[{name}]"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sized("int8", (1,)), sized("int16", (1,))),
        (sized("int8", (1, 2)), sized("int8", (1, 3))),
        (sized("int8", (1,)), RaggedTensor.of([[1]], "int8")),
        (RaggedTensor.of([[1]], "int8"), RaggedTensor.of([[1]], "int16")),
    ],
)
def test_an_extra_with_several_types_or_shapes_is_named(one, other):
    def with_x(prompt, tokens, extra):
        return replace(reply(prompt, tokens), tokens=TokenBlock.of(tokens, [-1.0], {"x": extra}))

    (segment,) = segments_of((0, with_x([1], [2], one)), (1, with_x([1, 2], [3], other)))
    assert (segment.sampled_extras, segment.incomplete_extras) == ({}, ("x",))
    (segment,) = segments_of((0, with_x([1], [2], one)), (1, with_x([1, 2], [3], one)))
    assert (set(segment.sampled_extras), segment.incomplete_extras) == ({"x"}, ())


def test_an_empty_reply_lacks_nothing():
    (segment,) = segments_of((0, reply([1], [])), (1, reply([1, 2], [3], of_reply=["entropy"])))
    assert set(segment.sampled_extras) == {"entropy"}
    assert right(segment)


def test_a_segment_without_extras_has_none():
    (segment,) = segments_of((0, reply([1], [2])))
    assert (segment.sampled_extras, segment.token_extras, segment.incomplete_extras) == ({}, {}, ())


def test_an_aligned_extra_has_a_row_for_each_token():
    (segment,) = segments_of(
        (0, reply([7, 8], [3], of_reply=MAKERS)), (1, reply([7, 8, 3, 4], [5, 6], of_reply=MAKERS))
    )
    mask = segment.mask()
    for name, maker in MAKERS.items():
        aligned, whole = segment.aligned_extra(name), maker(segment.ids)
        if isinstance(aligned, RaggedTensor):
            wanted = [row.tolist() if sampled else [] for row, sampled in zip(whole.numpy(), mask, strict=True)]
            assert [row.tolist() for row in aligned.numpy()] == wanted
        else:
            values = whole.numpy().copy()
            values[~mask] = 0
            assert np.array_equal(aligned.numpy(), values)
        check_extras({name: aligned}, len(segment.ids), "x")
    (segment,) = segments_of((0, reply([7, 8], [3], of_reply=MAKERS, of_prompt=MAKERS)))
    assert segment.aligned_extra("entropy") == segment.token_extras["entropy"]


def common(one, other) -> int:
    count = min(len(one), len(other))
    return next((at for at in range(count) if one[at] != other[at]), count)


@st.composite
def conversations(draw):
    """Chats with branches, drift, prefixes left out, and extras in some of their parts."""
    names = st.sets(st.sampled_from(sorted(MAKERS)))
    usual = draw(names), draw(names)
    tokens: dict[int, list[int]] = {0: []}
    chats = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        parent = draw(st.sampled_from([0, *([number - 1] * 4), *tokens]))
        known = list(tokens[parent])
        if known and draw(st.integers(0, 5)) == 0:
            known[draw(st.integers(0, len(known) - 1))] += 100
        prompt = known + draw(st.lists(st.integers(0, 3), max_size=3))
        shared = next(
            (i for i, pair in enumerate(zip(prompt, tokens[parent], strict=False)) if pair[0] != pair[1]), None
        )
        most = min(len(prompt), len(tokens[parent])) if shared is None else shared
        prefix = draw(st.integers(0, most)) if parent else 0
        sampled = draw(st.lists(st.integers(0, 3), max_size=3))
        of_prompt, of_reply = usual if draw(st.integers(0, 3)) else (draw(names), draw(names))
        chats.append((parent, reply(prompt, sampled, of_prompt=of_prompt, of_reply=of_reply, prefix=prefix)))
        tokens[number] = prompt + sampled
    return chats


@given(conversations())
def test_every_row_of_every_segment_is_that_of_its_token(chats):
    for segment in segments_of(*chats):
        assert right(segment)
        found = {*segment.token_extras, *segment.sampled_extras}
        assert not found & set(segment.incomplete_extras)
        own = [chats[number - 1][1] for number in segment.chats]
        for name in MAKERS:
            full = [name in response.tokens.extras for response in own if len(response.tokens.ids)]
            assert (name in segment.sampled_extras) <= all(full)
            if full and all(full):
                assert name in found


def test_every_tensor_type_joins():
    for dtype, code in TENSOR_DTYPES.items():
        raw = np.arange(4).astype(code or "<u2").tobytes() if dtype != "bool" else b"\0\1\0\1"
        width = len(raw) // 4
        parts = [
            Tensor(dtype=dtype, shape=(2,), data=raw[: 2 * width]),
            Tensor(dtype=dtype, shape=(2,), data=raw[2 * width :]),
        ]
        chats = [
            replace(reply([9], [1, 2]), tokens=TokenBlock.of([1, 2], [-1.0, -1.0], {"x": parts[0]})),
            replace(reply([9, 1, 2], [3, 4]), tokens=TokenBlock.of([3, 4], [-1.0, -1.0], {"x": parts[1]})),
        ]
        (segment,) = segments_of((0, chats[0]), (1, chats[1]))
        assert segment.sampled_extras["x"] == Tensor(dtype=dtype, shape=(4,), data=raw)


@pytest.mark.parametrize("of_prompt", [(), MAKERS], ids=["replies", "prompts and replies"])
@pytest.mark.parametrize("prefix", [0, 2, 3])
def test_without_a_dropped_chat_the_extras_are_those_of_the_others(of_prompt, prefix):
    first = reply([1, 2], [3], of_prompt=of_prompt, of_reply=MAKERS)
    left = reply([1, 2, 3, 4], [9], of_reply=MAKERS)
    again = reply([1, 2, 3, 4], [5, 6], of_prompt=of_prompt, of_reply=MAKERS, prefix=prefix)
    last = reply([1, 2, 3, 4, 5, 6, 7], [8], of_prompt=of_prompt, of_reply=MAKERS, prefix=6)
    assembler = SegmentBuilder()
    for number, parent, response in ((1, 0, first), (2, 1, left), (3, 1, again), (4, 3, last)):
        assembler.add(number, parent, response, ChatPurpose.POLICY)
    assembler.drop({2})
    kept, dropped = assembler.segments()
    (whole,) = segments_of((0, first), (1, again), (2, last))
    assert (kept.chats, dropped.chats, dropped.dropped) == ((1, 3, 4), (2,), True)
    assert replace(kept, chats=whole.chats) == whole
    dropped.check("segment")
