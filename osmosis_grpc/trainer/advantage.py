"""Computes the advantages of a group's rollouts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.types.tensors import ArrayEquality
from osmosis_grpc.protocol.types.trainable import no_outcomes
from osmosis_grpc.trainer.score_statistics import all_equal

Floats = NDArray[np.float64]
_Row = tuple[int, str, float]
Method = Literal["grpo", "grpo_no_std", "rloo"]

EPSILON = 1e-6
"""Added to the standard deviation, as in verl."""
_METHODS: dict[str, Callable[[Floats], Floats]] = {
    "grpo": lambda rewards: (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON),
    "grpo_no_std": lambda rewards: rewards - rewards.mean(),
    "rloo": lambda rewards: (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages(ArrayEquality):
    """The advantages of a group: one for each rewarded sample of each outcome, in order.

    If every rollout has one sample, there is one advantage for each outcome. Samples with `train=False` have none.
    """

    keys: tuple[tuple[str, str], ...]
    """The rollout id and the sample name of each value. The name is "" if no sample of the rollout is for training."""
    values: NDArray[np.float32]
    """float32, shape (n,)."""
    rewards: NDArray[np.float32]
    """float32, shape (n,): the rewards that were compared."""
    zero_variance: bool
    """Whether all compared rewards are equal, or differ by at most a millionth of the largest one, as rounding may
    cause. Then every value is 0."""


def advantages(group: Iterable[RolloutOutcome], method: Method = "grpo") -> Advantages:
    """Return the advantages of the rollouts of one group.

    A sample without a reward of its own has the reward of its rollout. If any rollout has samples with different
    rewards, each sample is compared only with the samples of the same name. Samples without any reward, and samples
    with `train=False`, are left out. Rewards that differ by at most a millionth of the largest one count as equal,
    because float32 rounds by as much.

    Args:
        group: An OutcomeGroup, or the outcomes of one group.
        method: "grpo" is the reward minus the group's mean, divided by its standard deviation (with n - 1, as in TRL
            and verl). "grpo_no_std" leaves out the division. "rloo" is the reward minus the mean of the other rewards.

    Raises:
        InvalidArgument: The method is unknown, the group has no outcomes, or a rollout failed, was an evaluation or
            has no reward.
    """
    compare = _METHODS.get(method)
    if compare is None:
        raise InvalidArgument("method", f"{method!r} is not one of {', '.join(get_args(Method))}")
    outcomes = _checked(group)
    if not outcomes:
        raise no_outcomes("group")
    for outcome in outcomes:
        if not _rewards(outcome):
            raise InvalidArgument(
                "group",
                f"rollout {outcome.rollout_id} has no advantage: it has no reward; "
                "set one with dataclasses.replace(outcome, reward=...)",
            )
    rows = _rows(outcomes)
    apart, compared = _compared(rows)
    rewards = {name: np.array(list(members.values()), dtype=np.float64) for name, members in compared.items()}
    alike = {name: all_equal(members.values()) for name, members in compared.items()}
    values = {
        name: dict(zip(compared[name], np.zeros(len(found)) if alike[name] else compare(found), strict=True))
        for name, found in rewards.items()
    }
    return Advantages(
        keys=tuple((outcomes[index].rollout_id, name) for index, name, _ in rows),
        values=np.array([values[name if apart else ""][index] for index, name, _ in rows], dtype=np.float32),
        rewards=np.array([reward for _, _, reward in rows], dtype=np.float32),
        zero_variance=all(alike.values()),
    )


def without_variance(outcomes: Iterable[RolloutOutcome]) -> bool:
    """Return whether all rewards that advantages() compares with each other are equal."""
    _, compared = _compared(_rows(outcomes))
    return all(all_equal(members.values()) for members in compared.values())


def _checked(group: Iterable[RolloutOutcome]) -> tuple[RolloutOutcome, ...]:
    outcomes = tuple(group)
    seen: set[str] = set()
    for outcome in outcomes:
        if not isinstance(outcome, RolloutOutcome):
            raise TypeError(f"group: holds a {type(outcome).__name__}, not the outcomes of one group")
        if outcome.evaluation or outcome.status is not OutcomeStatus.COMPLETED:
            raise InvalidArgument(
                "group", f"rollout {outcome.rollout_id} has no advantage: {outcome.not_trainable_reason}"
            )
        if outcome.rollout_id in seen:
            raise InvalidArgument("group", f"rollout {outcome.rollout_id} is in it twice")
        seen.add(outcome.rollout_id)
    names = sorted({outcome.group.id for outcome in outcomes if outcome.group is not None})
    if len(names) > 1:
        raise InvalidArgument("group", f"holds outcomes of several groups, {names[0]} and {names[1]}: call it for each")
    return outcomes


def _rows(outcomes: Iterable[RolloutOutcome]) -> list[_Row]:
    """Return the rewarded samples of all outcomes: the index of the outcome, the name of the sample, the reward."""
    return [(index, *found) for index, outcome in enumerate(outcomes) for found in _rewards(outcome).items()]


def _rewards(outcome: RolloutOutcome) -> dict[str, float]:
    """Return the rewards of an outcome's samples by name, without samples with `train=False`."""
    names = [name for name, sample in outcome.samples.items() if sample.train is not False] or [""]
    rewards = {name: outcome.reward_of(name) for name in names}
    return {name: reward for name, reward in rewards.items() if reward is not None}


def _compared(rows: Iterable[_Row]) -> tuple[bool, dict[str, dict[int, float]]]:
    """Return whether samples are compared by name, and for each comparison, its rewards by the index of the outcome."""
    rows = list(rows)
    apart = len({(index, reward) for index, _, reward in rows}) > len({index for index, _, _ in rows})
    compared: dict[str, dict[int, float]] = {}
    for index, name, reward in rows:
        compared.setdefault(name if apart else "", {})[index] = reward
    return apart, compared
