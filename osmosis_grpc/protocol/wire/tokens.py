"""tokens.proto: packed arrays between NumPy and the wire, without a loop over tokens.

In protobuf, a packed field of fixed width is a tag, a length, and the raw little-endian array. To write an array, this
module passes these bytes to protobuf's parser. To read an array, it serializes the block, and computes the position of
the array from the arrays' lengths. Both ways copy bytes and convert no elements. This needs protobuf 6.31 or
later.
"""

import math
from collections.abc import Mapping, Sequence

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.extras import MAX_EXTRAS, MAX_NAME, Extra, Extras, check_extras
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.samples import ChatRef, ChatReward, PrefixChat, Sample, Segment, SplitReason
from osmosis_grpc.protocol.types.tensors import MAX_DIMENSIONS, TENSOR_DTYPES, RaggedTensor, Tensor, np
from osmosis_grpc.protocol.types.tokens import Ids, Logprobs, TokenBlock, VersionSpan, check_logprobs
from osmosis_grpc.protocol.wire.field_conversion import Codec, Converter, EnumNames
from osmosis_grpc.protocol.wire.message import message_to_wire, messages_from_wire
from osmosis_grpc.protocol.wire.protobuf_encoding import head

_TENSOR_TYPES = {name: pb.TensorType.Value(f"TENSOR_TYPE_{name.upper()}") for name in TENSOR_DTYPES}
_TENSOR_NAMES = {number: name for name, number in _TENSOR_TYPES.items()}


def extras_to_wire(extras: Extras) -> dict[str, pb.Extra]:
    """Return extras as messages."""
    return {name: _extra_to_wire(extra) for name, extra in extras.items()}


def extras_from_wire(extras: Mapping[str, pb.Extra], rows: int, field: str) -> Extras:
    """Return extras, which check_extras() checks further. Raises InvalidArgument with a path below `field`."""
    if not extras:
        return NOTHING
    if len(extras) > MAX_EXTRAS:
        raise InvalidArgument(field, f"has {len(extras)} names, more than {MAX_EXTRAS}")
    return {name: _extra_from_wire(extra, rows, f"{field}[{name[:MAX_NAME]}]") for name, extra in extras.items()}


def _extra_to_wire(extra: Extra) -> pb.Extra:
    if isinstance(extra, RaggedTensor):
        return pb.Extra(ragged=pb.RaggedTensor(values=_tensor_to_wire(extra.values), offsets=extra.offsets.tolist()))
    return pb.Extra(tensor=_tensor_to_wire(extra))


def _tensor_to_wire(tensor: Tensor) -> pb.Tensor:
    return pb.Tensor(type=_TENSOR_TYPES[tensor.dtype], shape=tensor.shape, data=tensor.data)


def _extra_from_wire(extra: pb.Extra, rows: int, field: str) -> Extra:
    kind = extra.WhichOneof("values")
    if kind == "tensor":
        return _tensor_from_wire(extra.tensor, f"{field}.tensor")
    if kind is None:
        raise InvalidArgument(field, "has neither a tensor nor a ragged tensor")
    count = len(extra.ragged.offsets)
    if count != rows + 1:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.ragged.offsets", f"{count} offsets for {rows} tokens, not one more")
    offsets = np.fromiter(extra.ragged.offsets, np.uint32, count)
    offsets.flags.writeable = False
    return RaggedTensor(values=_tensor_from_wire(extra.ragged.values, f"{field}.ragged.values"), offsets=offsets)


def _tensor_from_wire(tensor: pb.Tensor, field: str) -> Tensor:
    if tensor.type not in _TENSOR_NAMES:
        raise InvalidArgument(f"{field}.type", f"{tensor.type} is not a tensor type")
    if len(tensor.shape) > MAX_DIMENSIONS:  # checked before the numbers are copied
        raise InvalidArgument(f"{field}.shape", f"has {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}")
    return Tensor(dtype=_TENSOR_NAMES[tensor.type], shape=tuple(tensor.shape), data=tensor.data)


_IDS, _LOGPROBS = 1, 2  # the field numbers, in TokenBlock and in Segment
SPLITS = EnumNames(SplitReason, pb.SplitReason, "a reason")


def block_to_wire(block: TokenBlock) -> pb.TokenBlock:
    """Return a token block as a message."""
    return pb.TokenBlock.FromString(block_bytes(block))


def block_from_wire(message: pb.TokenBlock, field: str) -> TokenBlock:
    """Return a checked token block. Its arrays are read-only views. Raises InvalidArgument."""
    extras = extras_from_wire(message.extras, len(message.ids), f"{field}.extras") if message.extras else NOTHING
    ids, logprobs = _read(message)
    block = TokenBlock(ids, logprobs if len(logprobs) else None, extras)
    block.check(field)
    return block


def block_bytes(block: TokenBlock) -> bytes:
    """Return a serialized token block."""
    return array_bytes(block.ids, block.logprobs) + extra_bytes(block.extras)


def array_bytes(ids: Ids, logprobs: Logprobs | None = None) -> bytes:
    """Return the serialized fields of ids and logprobs. They are the same in a token block and in a segment."""
    parts = [head(_IDS, ids.nbytes), ids.astype("<u4", copy=False).tobytes()]
    if logprobs is not None:
        parts += [head(_LOGPROBS, logprobs.nbytes), logprobs.astype("<f4", copy=False).tobytes()]
    return b"".join(parts)


def extra_bytes(extras: Extras) -> bytes:
    """Return the serialized extras of a token block."""
    if not extras:
        return b""
    return pb.TokenBlock(extras=extras_to_wire(extras)).SerializeToString()


def prompt_from_wire(message: pb.TokenBlock, field: str) -> tuple[Ids, Extras]:
    """Return the ids and the extras of a block that needs no logprobs. Raises InvalidArgument."""
    extras = extras_from_wire(message.extras, len(message.ids), f"{field}.extras") if message.extras else NOTHING
    ids, logprobs = _read(message)
    if len(logprobs):
        check_logprobs(logprobs, len(ids), "ids", field)
    if extras:
        check_extras(extras, len(ids), f"{field}.extras")
    return ids, extras


def spans_to_wire(spans: Sequence[VersionSpan]) -> list[pb.VersionSpan]:
    """Return policy versions as messages."""
    return [pb.VersionSpan(version=span.version, tokens=span.tokens) for span in spans]


def spans_from_wire(spans: Sequence[pb.VersionSpan]) -> tuple[VersionSpan, ...]:
    """Return the policy versions of messages."""
    return tuple(VersionSpan(span.version, span.tokens) for span in spans)


def segment_to_wire(segment: Segment) -> pb.Segment:
    """Return a segment as a message."""
    out = _SEGMENT.to_wire(
        segment,
        versions=spans_to_wire(segment.versions),
        incomplete_extras=segment.incomplete_extras,
        sampled_extras=extras_to_wire(segment.sampled_extras),
        token_extras=extras_to_wire(segment.token_extras),
    )
    out.MergeFromString(array_bytes(segment.ids, segment.logprobs))
    return out


def segment_from_wire(message: pb.Segment, field: str) -> Segment:
    """Return a checked segment. Raises InvalidArgument."""
    ids, logprobs = _read(message)
    versions = spans_from_wire(message.versions)
    if len(versions) == 1 and len(ids):  # the count of a single span is ignored
        versions = (VersionSpan(versions[0].version, sum(message.mask_runs[1::2])),)
    segment = _SEGMENT.from_wire(
        message,
        f"{field}.",
        ids=ids,
        logprobs=logprobs,
        versions=versions,
        incomplete_extras=tuple(message.incomplete_extras),
        sampled_extras=extras_from_wire(message.sampled_extras, len(logprobs), f"{field}.sampled_extras"),
        token_extras=extras_from_wire(message.token_extras, len(ids), f"{field}.token_extras"),
    )
    segment.check(field)
    return segment


def sample_to_wire(sample: Sample, name: str, *, refer: bool = False, blobs: bool = False) -> pb.Sample:
    """Return a sample as a message. With `refer` it leaves out the tokens and messages that the trainer knows.

    The trainer knows them because it answered the chats. `blobs` is that of message_to_wire().
    """
    begins = sample.begins if refer else None
    segment = _SEGMENT.to_wire if refer else segment_to_wire
    messages = sample.messages[begins.prefix_len if begins else 0 :]
    return _SAMPLE.to_wire(
        sample,
        name=name,
        messages=[message_to_wire(message, blobs=blobs) for message in messages],
        prefix_chat=begins.chat_number if begins else 0,
        segments=[segment(each) for each in sample.segments],
    )


def sample_from_wire(message: pb.Sample, field: str) -> Sample:
    """Return a checked sample. Raises InvalidArgument."""
    return _SAMPLE.from_wire(
        message,
        f"{field}.",
        messages=messages_from_wire(message.messages, f"{field}.messages", any_role=True),
        begins=PrefixChat(message.name, message.prefix_chat) if message.prefix_chat else None,
        segments=tuple(segment_from_wire(s, f"{field}.segments[{i}]") for i, s in enumerate(message.segments)),
    )


def check_reward(reward: float, field: str) -> float:
    """Return the reward. Raises InvalidArgument unless it is a finite number."""
    if not math.isfinite(reward):
        raise InvalidArgument(field, f"{reward} is not a finite number")
    return reward


def check_components(components: Mapping[str, float], field: str) -> dict[str, float]:
    """Return the parts of a reward by name. Raises InvalidArgument unless each is a finite number."""
    return {name: check_reward(part, f"{field}[{name}]") for name, part in components.items()} if components else {}


def _chat_rewards(rewards: Sequence[pb.ChatReward], field: str) -> tuple[ChatReward, ...]:
    """Return the rewards of chats. Raises InvalidArgument if one is not a number, or if two are for the same chat."""
    found = tuple(_CHAT_REWARD.from_wire(reward, f"{field}[{i}].") for i, reward in enumerate(rewards))
    if len({reward.chat_number for reward in found}) < len(found):
        raise InvalidArgument(field, "two rewards are for the same chat")
    return found


REWARD = Codec(float, check_reward)
COMPONENTS = Codec(dict, check_components)
Converter(ChatRef, pb.ChatRef)  # a field of Sample
_CHAT_REWARD = Converter(ChatReward, pb.ChatReward, reward=REWARD, reward_components=COMPONENTS)
_SEGMENT = Converter(
    Segment,
    pb.Segment,
    ("ids", "logprobs", "versions", "incomplete_extras", "sampled_extras", "token_extras"),
    split=SPLITS.codec(None),
)
_SAMPLE = Converter(
    Sample,
    pb.Sample,
    ("name", "prefix_chat", "messages", "begins", "segments", "chats"),
    reward=REWARD,
    reward_components=COMPONENTS,
    chat_rewards=Codec(lambda rewards: [*map(_CHAT_REWARD.to_wire, rewards)], _chat_rewards),
)


def _read(message: pb.TokenBlock | pb.Segment) -> tuple[Ids, Logprobs]:
    """Return ids and logprobs. Each is a view of its own bytes, so one is freed while the other is in use."""
    count, known = len(message.ids), len(message.logprobs)
    if not count and not known:
        return np.empty(0, "<u4"), np.empty(0, "<f4")
    data = message.SerializeToString()  # fields are in the order of their numbers, so these two come first
    at = len(head(_IDS, 4 * count)) if count else 0
    end = at + 4 * count
    ids = np.frombuffer(data[at:end], "<u4")
    if not known:
        return ids, np.empty(0, "<f4")
    at = end + len(head(_LOGPROBS, 4 * known))
    return ids, np.frombuffer(data[at : at + 4 * known], "<f4")
