"""tokens.proto: packed arrays between NumPy and the wire, without a loop over tokens.

In protobuf, a packed field of fixed width is a tag, a length, and the raw little-endian array. To write an array, this
module passes these bytes to protobuf's parser. To read an array, it serializes the block, and computes the position of
the array from the arrays' lengths. Both ways copy the array once and convert no elements. This needs protobuf 6.31 or
later.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from osmosis_grpc._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.extras import MAX_EXTRAS, MAX_NAME, Extra, Extras, check_extras
from osmosis_grpc.types.jsontext import NOTHING
from osmosis_grpc.types.samples import ChatRef, Sample, Segment
from osmosis_grpc.types.tensors import MAX_DIMENSIONS, TENSOR_DTYPES, RaggedTensor, Tensor
from osmosis_grpc.types.tokens import Ids, Logprobs, TokenBlock, VersionSpan, check_logprobs
from osmosis_grpc.wire.message import message_to_wire, messages_from_wire
from osmosis_grpc.wire.protobuf_encoding import head

_IDS, _LOGPROBS = 1, 2  # the field numbers, in TokenBlock and in Segment
_TENSOR_TYPES = {name: pb.TensorType.Value(f"TENSOR_TYPE_{name.upper()}") for name in TENSOR_DTYPES}
_TENSOR_NAMES = {number: name for name, number in _TENSOR_TYPES.items()}
_UINT32, _FLOAT32 = np.dtype("<u4"), np.dtype("<f4")
_NO_IDS: Ids = np.empty(0, dtype="<u4")
_NO_LOGPROBS: Logprobs = np.empty(0, dtype="<f4")


def block_to_wire(block: TokenBlock) -> pb.TokenBlock:
    """Returns a token block as a message."""
    return pb.TokenBlock.FromString(block_bytes(block))


def block_from_wire(message: pb.TokenBlock, field: str) -> TokenBlock:
    """Returns a checked token block. Its arrays are read-only views. Raises InvalidArgument."""
    extras = _extras_from_wire(message.extras, len(message.ids), f"{field}.extras") if message.extras else NOTHING
    ids, logprobs = _read(message, alone=not extras)
    block = TokenBlock(ids, logprobs if len(logprobs) else None, extras)
    block.check(field)
    return block


def block_bytes(block: TokenBlock) -> bytes:
    """Returns a serialized token block."""
    return array_bytes(block.ids, block.logprobs) + extra_bytes(block.extras)


def array_bytes(ids: Ids, logprobs: Logprobs | None = None) -> bytes:
    """Returns the serialized fields of ids and logprobs. They are the same in a token block and in a segment."""
    parts = [head(_IDS, ids.nbytes), ids.astype("<u4", copy=False).tobytes()]
    if logprobs is not None:
        parts += [head(_LOGPROBS, logprobs.nbytes), logprobs.astype("<f4", copy=False).tobytes()]
    return b"".join(parts)


def extra_bytes(extras: Extras) -> bytes:
    """Returns the serialized extras of a token block."""
    if not extras:
        return b""
    return pb.TokenBlock(extras=_extras_to_wire(extras)).SerializeToString()


def prompt_from_wire(message: pb.TokenBlock, field: str) -> tuple[Ids, Extras]:
    """Returns the ids and the extras of a block that needs no logprobs. Raises InvalidArgument."""
    extras = _extras_from_wire(message.extras, len(message.ids), f"{field}.extras") if message.extras else NOTHING
    ids, logprobs = _read(message, alone=not extras)
    if len(logprobs):
        check_logprobs(logprobs, len(ids), "ids", field)
    if extras:
        check_extras(extras, len(ids), field)
    return ids, extras


def spans_to_wire(spans: Sequence[VersionSpan]) -> list[pb.VersionSpan]:
    """Returns policy versions as messages."""
    return [pb.VersionSpan(version=span.version, tokens=span.tokens) for span in spans]


def spans_from_wire(spans: Sequence[pb.VersionSpan]) -> tuple[VersionSpan, ...]:
    """Returns the policy versions of messages."""
    return tuple(VersionSpan(span.version, span.tokens) for span in spans)


def segment_to_wire(segment: Segment) -> pb.Segment:
    """Returns a segment as a message."""
    out = pb.Segment(
        mask_runs=segment.mask_runs,
        versions=spans_to_wire(segment.versions),
        chats=segment.chats,
        drift_index=segment.drift_index,
        incomplete_extras=segment.incomplete_extras,
        sampled_extras=_extras_to_wire(segment.sampled_extras),
        token_extras=_extras_to_wire(segment.token_extras),
    )
    out.MergeFromString(array_bytes(segment.ids, segment.logprobs))
    return out


def segment_from_wire(message: pb.Segment, field: str) -> Segment:
    """Returns a checked segment. Raises InvalidArgument."""
    ids, logprobs = _read(message, alone=not (message.sampled_extras or message.token_extras))
    versions = spans_from_wire(message.versions)
    if len(versions) == 1 and len(ids):  # the count of a single span is ignored
        versions = (VersionSpan(versions[0].version, sum(message.mask_runs[1::2])),)
    segment = Segment(
        ids=ids,
        logprobs=logprobs,
        mask_runs=tuple(message.mask_runs),
        chats=tuple(message.chats),
        versions=versions,
        drift_index=message.drift_index if message.HasField("drift_index") else None,
        sampled_extras=_extras_from_wire(message.sampled_extras, len(logprobs), f"{field}.sampled_extras"),
        token_extras=_extras_from_wire(message.token_extras, len(ids), f"{field}.token_extras"),
        incomplete_extras=tuple(message.incomplete_extras),
    )
    segment.check(field)
    return segment


def segment_reference(segment: Segment) -> pb.Segment:
    """Returns a segment without its tokens, for a trainer that answered its chats."""
    return pb.Segment(mask_runs=segment.mask_runs, chats=segment.chats, drift_index=segment.drift_index)


def sample_to_wire(sample: Sample, name: str, *, refer: bool = False) -> pb.Sample:
    """Returns a sample as a message. With `refer` it leaves out the tokens and messages that the trainer knows.

    The trainer knows them because it answered the chats.
    """
    begins = sample.begins if refer else None
    segment = segment_reference if refer else segment_to_wire
    return pb.Sample(
        name=name,
        messages=[message_to_wire(message) for message in sample.messages[begins.prefix_len if begins else 0 :]],
        prefix_chat=begins.chat_number if begins else 0,
        segments=[segment(each) for each in sample.segments],
        reward=sample.reward,
        trainable=sample.trainable,
        not_trainable_reason=sample.not_trainable_reason,
    )


def sample_from_wire(message: pb.Sample, field: str) -> Sample:
    """Returns a checked sample. Raises InvalidArgument."""
    return Sample(
        messages=messages_from_wire(message.messages, f"{field}.messages"),
        begins=ChatRef(message.name, message.prefix_chat) if message.prefix_chat else None,
        segments=tuple(segment_from_wire(s, f"{field}.segments[{i}]") for i, s in enumerate(message.segments)),
        reward=check_reward(message.reward, f"{field}.reward") if message.HasField("reward") else None,
        trainable=message.trainable,
        not_trainable_reason=message.not_trainable_reason,
    )


def check_reward(reward: float, field: str) -> float:
    """Returns the reward. Raises InvalidArgument unless it is a finite number."""
    if not np.isfinite(reward):
        raise InvalidArgument(field, f"{reward} is not a finite number")
    return reward


def _read(message: pb.TokenBlock | pb.Segment, *, alone: bool = True) -> tuple[Ids, Logprobs]:
    """Returns ids and logprobs. If they are `alone`, they are views of the serialized message, otherwise copies.

    A view would keep the bytes of all extras in memory.
    """
    count, known = len(message.ids), len(message.logprobs)
    if not count and not known:
        return _NO_IDS, _NO_LOGPROBS
    data = message.SerializeToString()  # fields are in the order of their numbers, so these two come first
    at = len(head(_IDS, 4 * count)) if count else 0
    if not alone:
        data = data[: at + 4 * count + (len(head(_LOGPROBS, 4 * known)) + 4 * known if known else 0)]
    ids = np.frombuffer(data, _UINT32, count, at)
    if not known:
        return ids, _NO_LOGPROBS
    return ids, np.frombuffer(data, _FLOAT32, known, at + 4 * count + len(head(_LOGPROBS, 4 * known)))


def _tensor_to_wire(tensor: Tensor) -> pb.Tensor:
    return pb.Tensor(type=_TENSOR_TYPES[tensor.dtype], shape=tensor.shape, data=tensor.data)


def _extras_to_wire(extras: Extras) -> dict[str, pb.Extra]:
    return {name: _extra_to_wire(extra) for name, extra in extras.items()}


def _extra_to_wire(extra: Extra) -> pb.Extra:
    if isinstance(extra, RaggedTensor):
        return pb.Extra(ragged=pb.RaggedTensor(values=_tensor_to_wire(extra.values), offsets=extra.offsets.tolist()))
    return pb.Extra(tensor=_tensor_to_wire(extra))


def _extras_from_wire(extras: Mapping[str, pb.Extra], rows: int, field: str) -> Extras:
    """Returns extras. Their layouts are not yet checked."""
    if not extras:
        return NOTHING
    if len(extras) > MAX_EXTRAS:
        raise InvalidArgument(field, f"has {len(extras)} names, more than {MAX_EXTRAS}")
    return {name: _extra_from_wire(extra, rows, f"{field}[{name[:MAX_NAME]}]") for name, extra in extras.items()}


def _extra_from_wire(extra: pb.Extra, rows: int, field: str) -> Extra:
    kind = extra.WhichOneof("values")
    if kind == "tensor":
        return _tensor_from_wire(extra.tensor, f"{field}.tensor")
    if kind is None:
        raise InvalidArgument(field, "has neither a tensor nor a ragged tensor")
    count = len(extra.ragged.offsets)
    if count != rows + 1:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.ragged.offsets", f"{count} offsets for {rows} tokens, not one more")
    offsets = np.fromiter(extra.ragged.offsets, _UINT32, count)
    offsets.flags.writeable = False
    return RaggedTensor(values=_tensor_from_wire(extra.ragged.values, f"{field}.ragged.values"), offsets=offsets)


def _tensor_from_wire(tensor: pb.Tensor, field: str) -> Tensor:
    if tensor.type not in _TENSOR_NAMES:
        raise InvalidArgument(f"{field}.type", f"{tensor.type} is not a tensor type")
    if len(tensor.shape) > MAX_DIMENSIONS:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.shape", f"has {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}")
    return Tensor(dtype=_TENSOR_NAMES[tensor.type], shape=tuple(tensor.shape), data=tensor.data)
