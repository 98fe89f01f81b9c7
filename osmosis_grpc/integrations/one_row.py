"""Makes the one row of an outcome, for a trainer that takes one row for each rollout."""

from dataclasses import dataclass, replace

import numpy as np

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import RolloutOutcome, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRow:
    """The segment of a rollout that is trained on, as lists. The prompt ends where the first reply begins."""

    prompt_ids: list[int]
    response_ids: list[int]
    """Everything after the prompt: replies, and the tokens of tools, users and the chat template between them."""
    response_mask: list[int]
    """1 for each token of `response_ids` that the policy sampled, otherwise 0."""
    response_logprobs: list[float]
    """0.0 where the mask is 0."""
    sample: str
    """The name of the segment's sample."""
    reward: float
    """The reward of the sample, or else of the rollout."""
    segments_left_out: int
    """The number of other trainable segments of the rollout."""
    tokens_left_out: int
    """The number of sampled tokens in these."""


def one_row(outcome: RolloutOutcome) -> OneRow:
    """Returns the trainable segment with the most sampled tokens, the first one of equal ones, with its reward.

    The outcome may be an evaluation. Raises InvalidArgument with the reason if the outcome has no trainable segment.
    """
    outcome = replace(outcome, evaluation=False)
    found = [
        (segment.sampled, name, segment, sample.reward)
        for name, sample in outcome.trainable_samples().items()
        for segment in sample.segments
    ]
    if not found:
        raise InvalidArgument("", f"rollout {outcome.rollout_id}: {outcome.not_trainable_reason}")
    sampled, name, segment, reward = max(found, key=lambda each: each[0])
    prompt = prompt_length(segment)
    if not prompt:
        raise InvalidArgument("", f"rollout {outcome.rollout_id}: its first reply has an empty prompt")
    assert reward is not None
    return OneRow(
        prompt_ids=segment.ids[:prompt].tolist(),
        response_ids=segment.ids[prompt:].tolist(),
        response_mask=segment.mask()[prompt:].astype(np.int64).tolist(),
        response_logprobs=segment.aligned_logprobs()[prompt:].tolist(),
        sample=name,
        reward=reward,
        segments_left_out=len(found) - 1,
        tokens_left_out=sum(each[0] for each in found) - sampled,
    )


def prompt_length(segment: Segment) -> int:
    """Returns the number of tokens before the first sampled token."""
    return segment.mask_runs[0] if segment.mask_runs else 0
