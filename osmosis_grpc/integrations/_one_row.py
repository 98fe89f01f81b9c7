"""Reduces an outcome to one row, for trainers that take exactly one row for each rollout."""

from dataclasses import dataclass, replace

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.samples import Cut, Dropped
from osmosis_grpc.protocol.types.trainable import select


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRow:
    """The segment of a rollout to train on, as lists. The prompt ends where the first reply begins."""

    prompt_ids: list[int]
    response_ids: list[int]
    """Everything after the prompt: the replies, and between them the tokens of tools, users and the chat template."""
    response_mask: list[int]
    """1 for each token of `response_ids` that the policy sampled, else 0."""
    response_logprobs: list[float]
    """0.0 where the mask is 0."""
    sample: str
    reward: float
    segments_left_out: int
    tokens_left_out: int


def one_row(outcome: RolloutOutcome, *, cut: Cut = "train", dropped: Dropped = "skip") -> OneRow:
    """Return the (first) trainable segment with the most sampled tokens, and its reward.

    The outcome may be an evaluation. See RolloutOutcome.trainable_samples() for `cut` and `dropped`; with `cut="mask"`,
    all tokens of a sample that was cut off have mask 0. Raises InvalidArgument with the reason if there is no trainable
    segment.
    """
    found, skipped = select(replace(outcome, evaluation=False), cut=cut, dropped=dropped)
    if not found:
        raise InvalidArgument("", f"rollout {outcome.rollout_id}: {skipped[0].reason}")
    best = max(found, key=lambda each: each.sampled.sum())
    segment, sampled = best.segment, best.sampled
    prompt = int(sampled.argmax()) if sampled.any() else len(sampled)
    if not prompt:
        raise InvalidArgument("", f"rollout {outcome.rollout_id}: its first reply has an empty prompt")
    return OneRow(
        prompt_ids=segment.ids[:prompt].tolist(),
        response_ids=segment.ids[prompt:].tolist(),
        response_mask=segment.mask()[prompt:].astype(np.int64).tolist(),
        response_logprobs=segment.aligned_logprobs()[prompt:].tolist(),
        sample=best.row.sample,
        reward=best.reward,
        segments_left_out=len(found) - 1,
        tokens_left_out=sum(each.segment.sampled for each in found) - segment.sampled,
    )
