"""tokens.proto: packed arrays between NumPy and the wire, without a loop over tokens.

Fixed-width packed fields are raw little-endian arrays after a tag and a length. So an array
is written by handing exactly these bytes to the parser, and read from the serialized block,
where the arrays' lengths say where they stand; both cost a copy, not a conversion, on every
protobuf from 6.31 on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osmosis_grpc._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.jsontext import NOTHING
from osmosis_grpc.types.samples import ChatRef, Sample, Segment
from osmosis_grpc.types.tokens import TENSOR_DTYPES, Ids, Logprobs, Tensor, TokenBlock, VersionSpan, check_logprobs
from osmosis_grpc.wire.message import message_to_wire, messages_from_wire
from osmosis_grpc.wire.protobuf_encoding import head

_IDS, _LOGPROBS = 1, 2  # the field numbers, in TokenBlock and in Segment
_TENSOR_TYPES = {name: pb.TensorType.Value(f"TENSOR_TYPE_{name.upper()}") for name in TENSOR_DTYPES}
_TENSOR_NAMES = {number: name for name, number in _TENSOR_TYPES.items()}
_UINT32, _FLOAT32 = np.dtype("<u4"), np.dtype("<f4")
_NO_IDS: Ids = np.empty(0, dtype="<u4")
_NO_LOGPROBS: Logprobs = np.empty(0, dtype="<f4")


def block_to_wire(block: TokenBlock) -> pb.TokenBlock:
    """A token block."""
    out = pb.TokenBlock()
    _write(out, block.ids, block.logprobs)
    for name, tensor in block.extras.items():
        out.extras[name].CopyFrom(pb.Tensor(type=_TENSOR_TYPES[tensor.dtype], shape=tensor.shape, data=tensor.data))
    return out


def block_from_wire(message: pb.TokenBlock, field: str) -> TokenBlock:
    """A token block, checked; its arrays are read-only views. Raises InvalidArgument."""
    ids, logprobs = _read(message)
    extras = _extras(message.extras, field) if message.extras else NOTHING
    block = TokenBlock(ids, logprobs if len(logprobs) else None, extras)
    block.check(field)
    return block


def block_bytes(block: TokenBlock) -> bytes:
    """A token block as it stands on the wire."""
    if block.extras:
        return block_to_wire(block).SerializeToString()
    return b"".join(_parts(block.ids, block.logprobs))


def ids_bytes(ids: Ids) -> bytes:
    """Ids without logprobs as they stand on the wire."""
    return b"".join(_parts(ids, None))


def ids_to_wire(ids: Ids) -> pb.TokenBlock:
    """Ids without logprobs."""
    out = pb.TokenBlock()
    _write(out, ids, None)
    return out


def ids_from_wire(message: pb.TokenBlock, field: str) -> Ids:
    """Ids that may come without logprobs; a read-only view. Raises InvalidArgument."""
    ids, logprobs = _read(message)
    if len(logprobs):
        check_logprobs(logprobs, len(ids), "ids", field)
    return ids


def spans_to_wire(spans: Sequence[VersionSpan]) -> list[pb.VersionSpan]:
    """Policy versions."""
    return [pb.VersionSpan(version=span.version, tokens=span.tokens) for span in spans]


def spans_from_wire(spans: Sequence[pb.VersionSpan]) -> tuple[VersionSpan, ...]:
    """Policy versions."""
    return tuple(VersionSpan(span.version, span.tokens) for span in spans)


def segment_to_wire(segment: Segment) -> pb.Segment:
    """A segment."""
    out = pb.Segment(
        mask_runs=segment.mask_runs,
        versions=spans_to_wire(segment.versions),
        chats=segment.chats,
        drift_index=segment.drift_index,
    )
    _write(out, segment.ids, segment.logprobs)
    return out


def segment_from_wire(message: pb.Segment, field: str) -> Segment:
    """A segment, checked. Raises InvalidArgument."""
    ids, logprobs = _read(message)
    segment = Segment(
        ids=ids,
        logprobs=logprobs,
        mask_runs=tuple(message.mask_runs),
        chats=tuple(message.chats),
        versions=spans_from_wire(message.versions),
        drift_index=message.drift_index if message.HasField("drift_index") else None,
    )
    segment.check(field)
    return segment


def segment_reference(segment: Segment) -> pb.Segment:
    """A segment for a trainer that answered its chats: without the tokens."""
    return pb.Segment(mask_runs=segment.mask_runs, chats=segment.chats, drift_index=segment.drift_index)


def sample_to_wire(sample: Sample, *, refer: bool = False) -> pb.Sample:
    """A sample; with `refer` what the trainer has answered itself is left out."""
    begins = sample.begins if refer else None
    segment = segment_reference if refer else segment_to_wire
    return pb.Sample(
        messages=[message_to_wire(message) for message in sample.messages[begins.prefix_len if begins else 0 :]],
        messages_after=begins.number if begins else 0,
        segments=[segment(each) for each in sample.segments],
        reward=sample.reward,
        trainable=sample.trainable,
        not_trainable_reason=sample.not_trainable_reason,
    )


def sample_from_wire(message: pb.Sample, field: str, name: str = "main") -> Sample:
    """A sample, checked. Raises InvalidArgument."""
    return Sample(
        messages=messages_from_wire(message.messages, f"{field}.messages"),
        begins=ChatRef(name, message.messages_after) if message.messages_after else None,
        segments=tuple(segment_from_wire(s, f"{field}.segments[{i}]") for i, s in enumerate(message.segments)),
        reward=check_reward(message.reward, f"{field}.reward") if message.HasField("reward") else None,
        trainable=message.trainable,
        not_trainable_reason=message.not_trainable_reason,
    )


def check_reward(reward: float, field: str) -> float:
    """A reward is a finite number. Raises InvalidArgument."""
    if not np.isfinite(reward):
        raise InvalidArgument(field, f"{reward} is not a finite number")
    return reward


def _write(out: pb.TokenBlock | pb.Segment, ids: Ids, logprobs: Logprobs | None) -> None:
    out.MergeFromString(b"".join(_parts(ids, logprobs)))


def _parts(ids: Ids, logprobs: Logprobs | None) -> list[bytes]:
    parts = [head(_IDS, ids.nbytes), ids.astype("<u4", copy=False).tobytes()]
    if logprobs is not None:
        parts += [head(_LOGPROBS, logprobs.nbytes), logprobs.astype("<f4", copy=False).tobytes()]
    return parts


def _read(message: pb.TokenBlock | pb.Segment) -> tuple[Ids, Logprobs]:
    count, known = len(message.ids), len(message.logprobs)
    if not count and not known:
        return _NO_IDS, _NO_LOGPROBS
    data = message.SerializeToString()  # in the order of the fields' numbers: these two come first
    ids, at = _NO_IDS, 0
    if count:
        at = len(head(_IDS, 4 * count))
        ids = np.frombuffer(data, _UINT32, count, at)
        at += 4 * count
    if not known:
        return ids, _NO_LOGPROBS
    return ids, np.frombuffer(data, _FLOAT32, known, at + len(head(_LOGPROBS, 4 * known)))


def _extras(extras: Mapping[str, Any], field: str) -> dict[str, Tensor]:
    made = {}
    for name, tensor in extras.items():
        dtype = _TENSOR_NAMES.get(tensor.type)
        if dtype is None:
            raise InvalidArgument(f"{field}.extras[{name}].type", f"{tensor.type} is not a tensor type")
        made[name] = Tensor(dtype=dtype, shape=tuple(tensor.shape), data=tensor.data)
    return made
