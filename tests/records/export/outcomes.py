"""Outcomes for the tests of exports: made by hand, and at random from a seed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from osmosis_grpc.protocol.types import (
    ChatReward,
    Failure,
    Group,
    OutcomeStatus,
    RolloutMetrics,
    RolloutOutcome,
    Sample,
    Segment,
    Tensor,
    VersionSpan,
)
from osmosis_grpc.records.export import VerlConfig

QUESTION = {"role": "user", "content": "How much is 2 + 2?"}


def segment(prompt: Sequence[int], response: Sequence[int], mask: Sequence[int], logprobs: Sequence[float], **more):
    """Returns a segment with one chat for each run of sampled tokens."""
    whole = [0] * len(prompt) + list(mask)
    runs, last = [0], 0
    for bit in whole:
        if bit != last:
            runs.append(0)
            last = bit
        runs[-1] += 1
    return Segment(
        ids=np.array([*prompt, *response], dtype="<u4"),
        logprobs=np.array([value for value, bit in zip(logprobs, mask, strict=True) if bit], dtype="<f4"),
        mask_runs=tuple(runs),
        chats=tuple(range(1, len(runs) // 2 + 1)),
        **more,
    )


def sample(*segments: Segment, **more) -> Sample:
    replies = sum(len(segment.chats) for segment in segments)
    messages = [QUESTION] + [{"role": "assistant", "content": f"reply {n}"} for n in range(replies)]
    return Sample(messages=messages, segments=tuple(segments), trainable=True, **more)


def outcome(rollout_id: str, *segments: Segment, reward: float | None = 1.0, **more) -> RolloutOutcome:
    made = RolloutOutcome(
        rollout_id=rollout_id,
        status=OutcomeStatus.COMPLETED,
        reward=reward,
        samples={"main": sample(*segments)},
        metrics=RolloutMetrics(model_time=1.5, tool_time=0.25),
    )
    return replace(made, **more)


def failed(rollout_id: str) -> RolloutOutcome:
    return RolloutOutcome(
        rollout_id=rollout_id, status=OutcomeStatus.FAILED, failure=Failure(boundary="agent", message="no tool")
    )


def golden() -> list[RolloutOutcome]:
    """Returns the two rollouts of the golden vector."""
    first = segment([11, 12, 13], [21, 22, 31, 32, 23, 24], [1, 1, 0, 0, 1, 1], [-0.1, -0.2, 0, 0, -0.3, -0.4])
    second = segment([11], [41, 42], [1, 1], [-0.5, -0.6])
    return [outcome("r1", first, reward=1.0), outcome("r2", second, reward=0.0)]


GOLDEN = VerlConfig(prompt_length=6, response_length=10)
"""The lengths of the golden vector."""


def case(seed: int) -> tuple[list[RolloutOutcome], VerlConfig, int]:
    """Returns the outcomes, the lengths and the pad id of a random batch. The pad id is never 0."""
    random = np.random.default_rng(10_000 + seed)
    lengths = {"prompt_length": int(random.integers(1, 40)), "response_length": int(random.integers(1, 60))}
    experts = (2, 3) if seed % 4 == 0 else None
    extras = ("routed_experts",) if experts else ()
    return (
        random_outcomes(seed, **lengths, experts=experts),
        VerlConfig(**lengths, extras=extras),
        int(random.integers(1, 152_000)),
    )


def random_outcomes(
    seed: int, prompt_length: int, response_length: int, *, experts: tuple[int, int] | None = None
) -> list[RolloutOutcome]:
    """Returns 1 to 6 rollouts with 1 to 3 segments each, within the lengths."""
    random = np.random.default_rng(seed)
    parts = ["format", "answer"][: int(random.integers(0, 3))]
    made = []
    for number in range(int(random.integers(1, 7))):
        segments = [
            _random_segment(random, prompt_length, response_length, experts) for _ in range(int(random.integers(1, 4)))
        ]
        reward = float(np.float32(random.normal()))
        more = {
            "group": Group(f"g{number // 2}", number % 2, 2) if seed % 2 else None,
            "reward_components": {part: float(np.float32(random.normal())) for part in parts},
            "metrics": RolloutMetrics(model_time=float(random.random()), tool_time=float(random.random())),
        }
        each = outcome(f"r{number}", *segments, reward=reward, **more)
        if seed % 3 == 0:
            rewards = (ChatReward(chat_number=1, reward=float(random.random())),)
            each = replace(each, samples={"main": replace(each.samples["main"], chat_rewards=rewards)})
        made.append(each)
    return made


def _random_segment(random, prompt_length, response_length, experts) -> Segment:
    prompt, response = int(random.integers(1, prompt_length + 1)), int(random.integers(1, response_length + 1))
    mask = random.integers(0, 2, response)
    mask[0] = mask[-1] = 1  # a segment ends with a reply
    ids = random.integers(0, 152_000, prompt + response)
    logprobs = -random.random(response) * 5
    sampled = int(mask.sum())
    more: dict = {"versions": (VersionSpan(str(random.integers(0, 9)), sampled),)}
    if experts is not None:
        values = random.integers(0, 128, (prompt + response, *experts)).astype(np.int16)
        more["token_extras"] = {"routed_experts": Tensor.of(values)}
    return segment(ids[:prompt].tolist(), ids[prompt:].tolist(), mask.tolist(), logprobs.tolist(), **more)
