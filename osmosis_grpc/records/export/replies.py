"""The tokens of the single replies of a sample, taken out of its segments."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from osmosis_grpc.protocol.types import Ids, Logprobs, Sample, Segment


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The tokens of one chat."""

    chat_number: int
    prompt_ids: Ids
    """uint32: all tokens before the reply."""
    ids: Ids
    """uint32, shape (n,)."""
    logprobs: Logprobs
    """float32, shape (n,)."""
    version: str
    """The policy version of the first token; empty if it is unknown."""


def replies(sample: Sample) -> list[Reply] | None:
    """Return the replies of a sample in the order of their numbers.

    Returns None if the segments do not have exactly one run of sampled tokens for each chat, as after a reply without
    tokens. Then nobody can say which tokens belong to which reply.
    """
    made: list[Reply] = []
    for segment in sample.segments:
        if segment.referred or sum(1 for count in segment.mask_runs[1::2] if count) != len(segment.chats):
            return None
        made += _of_segment(segment)
    return sorted(made, key=lambda reply: reply.chat_number)


def _of_segment(segment: Segment) -> Iterator[Reply]:
    bounds = np.cumsum([0, *segment.mask_runs]).tolist()
    spans = [(bounds[i], bounds[i + 1]) for i in range(1, len(bounds) - 1, 2) if bounds[i + 1] > bounds[i]]
    versions = [span.version for span in segment.versions for _ in range(span.tokens)]
    at = 0
    for chat, (start, end) in zip(segment.chats, spans, strict=True):
        count = end - start
        version = versions[at] if versions else ""
        yield Reply(chat, segment.ids[:start], segment.ids[start:end], segment.logprobs[at : at + count], version)
        at += count
