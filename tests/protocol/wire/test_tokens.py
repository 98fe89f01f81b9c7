"""Token blocks, segments and samples between NumPy and the wire."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Sample, Segment, SplitReason, Tensor, TokenBlock, VersionSpan
from osmosis_grpc.protocol.types.tensors import TENSOR_DTYPES
from osmosis_grpc.protocol.wire.tokens import (
    array_bytes,
    block_from_wire,
    block_to_wire,
    sample_from_wire,
    sample_to_wire,
    segment_from_wire,
    segment_to_wire,
)

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
LOGPROB = st.floats(max_value=0, allow_infinity=False, width=32) | st.just(np.nan) | st.sampled_from([0.0, 1e-3, -1e30])


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def trip(block: TokenBlock) -> TokenBlock:
    return block_from_wire(over_the_wire(block_to_wire(block)), "tokens")


def named(call, *args) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args)
    return refusal.value.violations[0][0]


@st.composite
def blocks(draw):
    ids = draw(IDS)
    count = len(ids)
    logprobs = draw(st.none() | st.lists(LOGPROB, min_size=count, max_size=count)) if count else None
    dtypes = draw(st.lists(st.sampled_from([name for name, word in TENSOR_DTYPES.items() if word]), max_size=2))
    tail = draw(st.lists(st.integers(0, 3), max_size=2))
    extras = {f"extra-{name}": Tensor.of(np.ones((count, *tail), dtype=name)) for name in dtypes}
    return TokenBlock.of(ids, logprobs, extras)


@given(blocks())
def test_any_block_survives(block):
    back = trip(block)
    assert back == block
    assert back.ids.tobytes() == block.ids.tobytes()
    assert (back.logprobs is None) == (block.logprobs is None)
    if block.logprobs is not None:
        assert back.logprobs.tobytes() == block.logprobs.tobytes()


@given(IDS, st.booleans())
def test_the_bytes_equal_plain_protobuf(ids, with_logprobs):
    logprobs = [-i / 7 for i in range(len(ids))] if with_logprobs else None
    plain = pb.TokenBlock()
    plain.ids.extend(ids)
    plain.logprobs.extend(logprobs or [])
    written = block_to_wire(TokenBlock.of(ids, logprobs))
    assert written == plain
    assert written.SerializeToString() == plain.SerializeToString()
    alone = pb.TokenBlock.FromString(array_bytes(TokenBlock.of(ids).ids))
    assert alone.SerializeToString() == pb.TokenBlock(ids=ids).SerializeToString()


@pytest.mark.parametrize("count", [0, 1, 31, 32, 4095, 4096, 600_000])
def test_lengths_at_the_edges_of_varints(count):
    ids = np.arange(count, dtype="<u4")
    assert np.array_equal(trip(TokenBlock.of(ids, np.full(count, -1.0))).ids, ids)
    assert block_to_wire(TokenBlock.of(ids)).SerializeToString() == pb.TokenBlock(ids=ids.tolist()).SerializeToString()


def test_every_nan_is_kept_bit_for_bit():
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF, 0x7F800001], dtype="<u4")
    block = TokenBlock(np.arange(5, dtype="<u4"), bits.view("<f4"))
    back = trip(block)
    assert np.array_equal(back.logprobs.view("<u4"), bits)
    assert back == block
    assert not back.complete


@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
@pytest.mark.parametrize("shape", [(0,), (3,), (3, 0), (3, 2, 4)])
def test_a_tensor_of_every_dtype_survives(dtype, shape):
    word = TENSOR_DTYPES[dtype] or "<u2"
    array = (np.arange(np.prod(shape)) % 2).astype(word).reshape(shape)
    tensor = Tensor(dtype=dtype, shape=shape, data=array.tobytes())
    back = trip(TokenBlock.of(range(shape[0]), extras={"experts": tensor})).extras["experts"]
    assert back == tensor
    assert back.numpy().dtype == np.dtype(word)
    assert np.array_equal(back.numpy(), array)


def test_every_tensor_type_of_the_protocol_is_known():
    numbers = set(pb.TensorType.values()) - {pb.TENSOR_TYPE_UNSPECIFIED}
    written = {pb.TensorType.Value(f"TENSOR_TYPE_{name.upper()}") for name in TENSOR_DTYPES}
    assert written == numbers


def test_arrays_that_were_read_are_read_only():
    block = trip(TokenBlock.of([1, 2], [-1.0, np.nan], {"x": Tensor.of([1.5, 2.5])}))
    for array in (block.ids, block.logprobs, block.extras["x"].numpy()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_an_empty_reply_is_as_complete_after_the_trip_as_before():
    block = TokenBlock.of([], [])
    assert trip(block).complete is block.complete


def test_a_block_of_a_newer_protocol_is_read():
    """Unknown fields, of whatever kind and number, do not disturb the known ones."""
    block = TokenBlock.of([7, 8], [-1.0, -2.0])
    with_extras = replace(block, extras={"x": Tensor.of([1, 2])})
    unknown = [
        bytes([15 << 3 | 0, 5]),  # a varint
        bytes([4 << 3 | 1]) + b"12345678",  # 64 bits
        bytes([4 << 3 | 5]) + b"1234",  # 32 bits
        bytes([9 << 3 | 2, 3]) + b"abc",  # bytes
        bytes([1 << 3 | 0, 5]),  # ids as another kind
    ]
    for more in [*unknown, b"".join(unknown)]:
        for sent in (block, with_extras):
            known = block_to_wire(sent).SerializeToString()
            for data in (known + more, more + known):
                assert block_from_wire(pb.TokenBlock.FromString(data), "tokens") == sent


def test_unpacked_fields_are_accepted():
    data = b"".join(bytes([1 << 3 | 5]) + struct.pack("<I", i) for i in (5, 6, 7))
    data += b"".join(bytes([2 << 3 | 5]) + struct.pack("<f", x) for x in (-1.0, -2.0))
    data += bytes([2 << 3 | 2, 4]) + struct.pack("<f", -3.0)  # and packed ones after them
    block = block_from_wire(pb.TokenBlock.FromString(data), "tokens")
    assert block.ids.tolist() == [5, 6, 7]
    assert block.logprobs.tolist() == [-1.0, -2.0, -3.0]


BAD_BLOCKS = {
    "tokens.logprobs": [
        pb.TokenBlock(ids=[1, 2], logprobs=[-1.0]),
        pb.TokenBlock(logprobs=[-1.0]),
        pb.TokenBlock(ids=[1], logprobs=[-1.0, -1.0]),
        pb.TokenBlock(ids=[1], logprobs=[np.inf]),
        pb.TokenBlock(ids=[1], logprobs=[-np.inf]),
        pb.TokenBlock(ids=[1, 2], logprobs=[np.nan, 0.0011]),
        pb.TokenBlock(ids=[1], logprobs=[1.0]),
    ]
}


@pytest.mark.parametrize(
    ("field", "message"), [(field, bad) for field, all_bad in BAD_BLOCKS.items() for bad in all_bad]
)
def test_a_block_whose_parts_do_not_agree_is_refused(field, message):
    assert named(block_from_wire, over_the_wire(message), "tokens") == field


@st.composite
def segments(draw):
    runs = draw(st.lists(st.integers(0, 5), max_size=6))
    ids, sampled = sum(runs), sum(runs[1::2])
    return Segment(
        ids=np.arange(ids, dtype="<u4"),
        logprobs=np.array(draw(st.lists(LOGPROB, min_size=sampled, max_size=sampled)), dtype="<f4"),
        mask_runs=tuple(runs),
        versions=draw(
            st.sampled_from([(), (VersionSpan("7", sampled),), (VersionSpan("", sampled), VersionSpan("8", 0))])
        ),
        chats=tuple(draw(st.lists(st.integers(1, 9), max_size=3))),
        drift_index=draw(st.none() | st.integers(0, 5)),
        split=draw(st.none() | st.sampled_from(SplitReason)),
    )


@given(segments(), st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_any_segment_and_its_sample_survive(segment, reward):
    back = segment_from_wire(over_the_wire(segment_to_wire(segment)), "segment")
    assert back == segment
    assert int(back.mask().sum()) == segment.sampled
    sample = Sample(
        messages=[{"role": "user", "content": None}], segments=(segment, segment), reward=reward, trainable=True
    )
    back = sample_from_wire(over_the_wire(sample_to_wire(sample, "main")), "sample")
    assert back == sample
    assert (back.reward is None) == (reward is None)


def test_a_mask_of_many_turns():
    segment = Segment(ids=np.zeros(900, "<u4"), logprobs=np.zeros(600, "<f4"), mask_runs=(1, 2) * 300)
    assert np.array_equal(segment.mask(), np.tile(np.array([0, 1, 1], dtype=np.uint8), 300))


BAD_SEGMENTS = [
    ("segment.mask_runs", pb.Segment(ids=[1, 2], logprobs=[-1.0], mask_runs=[0, 1])),
    ("segment.mask_runs", pb.Segment(ids=[1, 2], logprobs=[-1.0], mask_runs=[2, 1])),
    ("segment.logprobs", pb.Segment(ids=[1, 2], logprobs=[-1.0, -1.0], mask_runs=[1, 1])),
    ("segment.logprobs", pb.Segment(ids=[1, 2], mask_runs=[1, 1])),
    ("segment.logprobs", pb.Segment(ids=[1, 2], logprobs=[np.inf], mask_runs=[1, 1])),
    (
        "segment.versions",
        pb.Segment(ids=[1], logprobs=[-1.0], mask_runs=[0, 1], versions=[pb.VersionSpan(), pb.VersionSpan(tokens=2)]),
    ),
]


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_the_count_of_a_single_span_is_ignored(count):
    message = pb.Segment(ids=[1, 2], logprobs=[-1.0], mask_runs=[1, 1], versions=[pb.VersionSpan(tokens=count)])
    segment = segment_from_wire(over_the_wire(message), "segment")
    assert segment.versions == (VersionSpan("", 1),)


def test_a_segment_without_ids_has_no_logprobs_and_no_versions():
    reference = {"mask_runs": [1, 3], "chats": [1]}
    assert segment_from_wire(pb.Segment(**reference), "segment").referred
    for extra in ({"logprobs": [-1.0] * 3}, {"versions": [pb.VersionSpan(version="7")]}):
        message = over_the_wire(pb.Segment(**reference, **extra))
        assert named(segment_from_wire, message, "segment") == "segment.mask_runs"


def test_several_spans_add_up_to_the_sampled_tokens():
    spans = [pb.VersionSpan(version="7", tokens=1), pb.VersionSpan(version="8", tokens=2)]
    fields = {"ids": [1, 2, 3, 4], "logprobs": [-1.0] * 3, "mask_runs": [1, 3]}
    assert len(segment_from_wire(over_the_wire(pb.Segment(**fields, versions=spans)), "segment").versions) == 2
    spans[1].tokens = 1
    message = over_the_wire(pb.Segment(**fields, versions=spans))
    assert named(segment_from_wire, message, "segment") == "segment.versions"


@pytest.mark.parametrize(("field", "message"), BAD_SEGMENTS)
def test_a_segment_whose_parts_do_not_agree_is_refused(field, message):
    assert named(segment_from_wire, over_the_wire(message), "segment") == field
    sample = pb.Sample(segments=[pb.Segment(), message])
    assert named(sample_from_wire, sample, "sample") == field.replace("segment", "sample.segments[1]", 1)


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_must_be_a_finite_number(reward):
    assert named(sample_from_wire, pb.Sample(reward=reward), "sample") == "sample.reward"
