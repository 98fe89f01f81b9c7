"""A rollout to export: its outcome, facts that only the server or the journal has, and the tokens of each reply."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import Fork, Ids, Logprobs, Message, RolloutOutcome, Sample, Segment, ToolDict
from osmosis_grpc.protocol.types.trainable import Outcomes, flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """An outcome, with facts about its rollout that the outcome does not contain. Any of them may be missing."""

    outcome: RolloutOutcome
    agent_loop: str = ""
    """The name of the agent loop."""
    tools: Sequence[ToolDict] = ()
    """The tools that the agent loop listed for the request."""
    messages: Sequence[Message] = ()
    """The messages of the request."""
    label: str | None = None
    """The reference answer."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fork: Fork | None = None
    """The recorded chat at which the rollout was forked; None if it is not a fork."""
    accept_time: float | None = None
    """Unix seconds."""
    end_time: float | None = None
    """Unix seconds."""


def recorded(rollouts: Outcomes | Iterable[RecordedRollout]) -> Iterator[RecordedRollout]:
    """Yield each outcome as a RecordedRollout. Yield RecordedRollouts unchanged."""
    for each in rollouts:
        if isinstance(each, RecordedRollout):
            yield each
        else:
            for outcome in flatten([each]):
                yield RecordedRollout(outcome=outcome)


def facts(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the facts of an outcome for text formats, as JSON. Facts that are missing are left out."""
    failure, group = outcome.failure, outcome.group
    made = {
        "rollout_id": outcome.rollout_id,
        "attempt": outcome.attempt,
        "status": str(outcome.status),
        "finish_reason": outcome.finish_reason or None,
        "failure": None
        if failure is None
        else {"boundary": failure.boundary, "reason": str(failure.reason), "message": failure.message},
        "reward": outcome.reward,
        "reward_components": dict(outcome.reward_components) or None,
        "group": None if group is None else {"id": group.id, "index": group.index, "size": group.size},
        "evaluation": outcome.evaluation or None,
        "agent_version": outcome.agent_version or None,
    }
    return {name: value for name, value in made.items() if value is not None}


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

    Return None if it is unknown which tokens belong to which reply, because the segments don't have exactly one run of
    sampled tokens for each chat. This happens after a reply without tokens.
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
