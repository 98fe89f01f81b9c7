"""Cuts an outcome that is too large for a message."""

from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2 as pb

MAX_OUTCOME_BYTES = 16 * 1024 * 1024
"""The most bytes of an outcome in a message."""
_SEGMENT_TOKENS: Any = ("ids", "logprobs", "versions", "sampled_extras", "token_extras", "incomplete_extras")
"""The fields of a segment that depend on its tokens."""
_FIELD_BYTES = 8
"""At least the bytes of the tag and the length of a path."""


def cut_to_limit(message: pb.RolloutOutcome, limit: int = MAX_OUTCOME_BYTES) -> pb.RolloutOutcome:
    """Cut an outcome to `limit` bytes and return it. Its field `omitted` names the fields that were left out.

    It leaves out the tokens of one segment after another, then all messages, then extra_json. A segment without its
    tokens refers to its chats.
    """
    left = message.ByteSize()
    for sample in message.samples:
        for index, segment in enumerate(sample.segments):
            if left > limit and segment.ids:
                left -= segment.ByteSize()
                for field in _SEGMENT_TOKENS:
                    segment.ClearField(field)
                message.omitted.append(f"samples[{sample.name}].segments[{index}]")
                left += segment.ByteSize() + len(message.omitted[-1]) + _FIELD_BYTES
    samples = [(f"samples[{sample.name}].", sample) for sample in message.samples]
    steps: list[list[tuple[str, Any, str]]] = [
        [(path, sample, "messages") for path, sample in samples],
        [("", message, "extra_json")],
    ]
    for step in steps:
        if message.ByteSize() <= limit:
            break
        for path, part, field in step:
            if getattr(part, field):
                part.ClearField(field)
                message.omitted.append(path + field)
    return message
