"""Extras on the wire. What is malformed is refused with the name of its field."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatResponse, RaggedTensor, Segment, Tensor, TokenBlock
from osmosis_grpc.protocol.types.extras import MAX_EXTRAS
from osmosis_grpc.protocol.types.tensors import TENSOR_DTYPES
from osmosis_grpc.protocol.wire.chat import reply_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.tokens import block_from_wire, block_to_wire, segment_from_wire, segment_to_wire

INT8 = pb.TENSOR_TYPE_INT8
UINT32 = pb.TENSOR_TYPE_UINT32


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def named(call, *args) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        call(*args)
    return refusal.value.violations[0][0]


def block(extra: pb.Extra, name: str = "x", tokens: int = 2) -> pb.TokenBlock:
    return pb.TokenBlock(ids=range(tokens), extras={name: extra})


def ragged(offsets, elements: int = 3, kind: int = INT8) -> pb.Extra:
    values = pb.Tensor(type=kind, shape=[elements], data=b"1" * elements * (4 if kind == UINT32 else 1))
    return pb.Extra(ragged=pb.RaggedTensor(values=values, offsets=offsets))


def tensor(kind: int, *shape: int, size: int = 0) -> pb.Extra:
    return pb.Extra(tensor=pb.Tensor(type=kind, shape=shape, data=bytes(size)))


def test_a_ragged_extra_of_every_type_survives():
    for dtype, code in TENSOR_DTYPES.items():
        data = np.array([0, 1, 1], dtype=code or "<u2").tobytes()
        values = Tensor(dtype=dtype, shape=(3,), data=data)
        sent = TokenBlock.of([1, 2], extras={"x": RaggedTensor(values=values, offsets=np.array([0, 1, 3], "<u4"))})
        back = block_from_wire(over_the_wire(block_to_wire(sent)), "tokens")
        assert back == sent
        assert [len(row) for row in back.extras["x"].numpy()] == [1, 2]
        with pytest.raises(ValueError, match="read-only"):
            back.extras["x"].offsets[0] = 1


def test_extras_of_the_prompt_survive():
    extras = {
        "sampling_mask": RaggedTensor.of([[1], [], [4, 5]], "uint32"),
        "entropy": Tensor.of(np.float32([1, 2, 3])),
    }
    sent = ChatResponse(
        message={"role": "assistant", "content": ""}, prompt_ids=np.arange(3, dtype="<u4"), prompt_extras=extras
    )
    back = reply_from_wire(chat_pb2.ChatResponse.FromString(reply_bytes(sent)))
    assert replace(back, size=0) == sent


def test_extras_of_a_segment_survive():
    sent = Segment(
        ids=np.arange(3, dtype="<u4"),
        logprobs=np.zeros(1, "<f4"),
        mask_runs=(2, 1),
        chats=(1,),
        sampled_extras={"sampling_mask": RaggedTensor.of([[7]], "uint32")},
        token_extras={"routed_experts": Tensor.of(np.ones((3, 2, 2), "int16"))},
        incomplete_extras=("entropy", "x"),
    )
    assert segment_from_wire(over_the_wire(segment_to_wire(sent)), "segment") == sent


def test_arrays_beside_extras_do_not_keep_their_bytes():
    extras = {"x": Tensor.of(np.ones((2, 100_000), "int8"))}
    back = block_from_wire(over_the_wire(block_to_wire(TokenBlock.of([1, 2], [-1.0, -2.0], extras))), "tokens")
    assert (back.ids.tolist(), back.logprobs.tolist()) == ([1, 2], [-1.0, -2.0])
    owner = back.ids
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert len(owner) < 100


BAD = {
    "tokens.extras[x]": [pb.Extra()],
    "tokens.extras[x].tensor.type": [tensor(0, 2, size=2), tensor(99, 2, size=2)],
    "tokens.extras[x].tensor.shape": [
        tensor(INT8, 3, size=3),
        tensor(INT8, size=1),
        tensor(INT8, *[1] * 10_000, size=1),
        tensor(INT8, 2, 0, *[2**32 - 1] * 9),
        tensor(INT8, *[2**32 - 1] * 16, size=1),
    ],
    "tokens.extras[x].tensor.data": [tensor(INT8, 2, size=3), tensor(INT8, 2, 2**32 - 1), tensor(UINT32, 2, size=7)],
    "tokens.extras[x].ragged.offsets": [
        ragged([]),
        ragged([0]),
        ragged([0, 3]),
        ragged([0, 1, 2, 3]),
        ragged([1, 2, 3]),
        ragged([0, 3, 2]),
        ragged([0, 2**32 - 1, 3]),
        ragged([0] * 100_000),
    ],
    "tokens.extras[x].ragged.values.shape": [ragged([0, 1, 2]), ragged([0, 1, 4]), ragged([0, 1, 2**32 - 1])],
    "tokens.extras[x].ragged.values.type": [ragged([0, 1, 3], kind=0), ragged([0, 1, 3], kind=77)],
    "tokens.extras[x].ragged.values.data": [
        pb.Extra(ragged=pb.RaggedTensor(values=pb.Tensor(type=INT8, shape=[3], data=b"12"), offsets=[0, 1, 3]))
    ],
}


@pytest.mark.parametrize(("field", "extra"), [(field, each) for field, all_bad in BAD.items() for each in all_bad])
def test_a_malformed_extra_is_refused_by_name(field, extra):
    message = over_the_wire(block(extra))
    assert named(block_from_wire, message, "tokens") == field
    reply = chat_pb2.ChatResponse(message={"role": "assistant", "text": "x"}, prompt=message)
    assert named(reply_from_wire, reply) == field.replace("tokens", "prompt")


def test_the_number_of_extras_is_bounded():
    many = pb.TokenBlock(ids=[1], extras={str(n): tensor(INT8, 1, size=1) for n in range(MAX_EXTRAS + 1)})
    assert named(block_from_wire, many, "tokens") == "tokens.extras"


def test_a_segments_extras_fit_its_tokens():
    whole = {"ids": [1, 2, 3], "logprobs": [-1.0], "mask_runs": [2, 1], "chats": [1]}
    good = {"x": tensor(INT8, 3, size=3)}
    segment_from_wire(pb.Segment(**whole, token_extras=good), "s")
    assert named(segment_from_wire, pb.Segment(**whole, sampled_extras=good), "s").startswith("s.sampled_extras[x]")
    reference = pb.Segment(mask_runs=[2, 1], chats=[1], sampled_extras={"x": tensor(INT8, 0)})
    assert named(segment_from_wire, reference, "s") == "s.ids"


GOOD = TokenBlock.of(
    [5, 6, 7],
    [-1.0, -2.0, -3.0],
    {
        "sampling_mask": RaggedTensor.of([[1, 2], [], [3]], "uint32"),
        "routed_experts": Tensor.of(np.ones((3, 2, 2), "uint8")),
        "y": RaggedTensor.of([[0.5], [1.5], []], "float64"),
    },
)
BYTES = block_to_wire(GOOD).SerializeToString(deterministic=True)


@given(
    st.lists(st.tuples(st.integers(0, len(BYTES) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 9)
)
@example([(0, 0)], 0)
@settings(max_examples=1500)
@pytest.mark.slow
def test_changed_bytes_are_read_or_refused(changes, cut):
    data = bytearray(BYTES)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(DecodeError, InvalidArgument):
        read = block_from_wire(pb.TokenBlock.FromString(bytes(data[: len(data) - cut])), "tokens")
        for extra in read.extras.values():
            assert len(extra.numpy()) == len(read.ids)
            if isinstance(extra, RaggedTensor):
                assert sum(map(len, extra.numpy())) == extra.values.shape[0]
        assert block_from_wire(over_the_wire(block_to_wire(read)), "tokens") == read


@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**32 - 1), max_size=6),
    st.lists(st.integers(0, 5) | st.integers(0, 2**32 - 1), max_size=4),
    st.integers(0, 13),
    st.binary(max_size=24),
    st.integers(0, 4),
)
def test_any_ragged_tensor_is_read_or_refused(offsets, shape, kind, data, tokens):
    extra = pb.Extra(ragged=pb.RaggedTensor(values=pb.Tensor(type=kind, shape=shape, data=data), offsets=offsets))
    message = over_the_wire(block(extra, tokens=tokens))
    with contextlib.suppress(InvalidArgument):
        read = block_from_wire(message, "tokens")
        assert [len(row) for row in read.extras["x"].numpy()] == np.diff(np.array(offsets, dtype=np.int64)).tolist()
        return
    assert named(block_from_wire, message, "tokens").startswith("tokens.extras[x].ragged.")
