"""Evaluation: the outcomes of Trainer.evaluate(), which measures the policy."""

from collections.abc import Mapping
from dataclasses import dataclass

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer.score_statistics import Scores, ScoreSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcomes of one evaluation, in the order in which the rollouts ended."""

    outcomes: tuple[RolloutOutcome, ...] = ()

    @property
    def n(self) -> int:
        """The number of rollouts."""
        return len(self.outcomes)

    @property
    def failed(self) -> int:
        """The number of rollouts that did not complete. They do not count in the mean."""
        return sum(outcome.status is not OutcomeStatus.COMPLETED for outcome in self.outcomes)

    @property
    def mean_reward(self) -> float | None:
        """The mean of the rollouts' rewards; None if no rollout has a reward.

        For a rollout without a reward of its own, the mean of its samples' rewards counts.
        """
        rewards = [reward for outcome in self.outcomes if (reward := outcome.mean_reward) is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def rows(self) -> Mapping[str, tuple[RolloutOutcome, ...]]:
        """The outcomes of each request, by the id of the request. The members of a group are in order."""
        found: dict[str, list[RolloutOutcome]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.group.id if outcome.group else outcome.rollout_id, []).append(outcome)
        return {name: tuple(sorted(outcomes, key=_index)) for name, outcomes in found.items()}

    def summary(self, threshold: float = 1.0) -> ScoreSummary:
        """Return the mean reward with its 95 % interval, and pass@k for each k up to the number of rollouts per row.

        A rollout passes if it completes with a reward of at least `threshold`. The intervals treat each row as one
        unit, because the rollouts of a row are not independent. `osmosis-grpc eval` computes the same numbers.
        """
        scores = Scores(threshold)
        for row, outcomes in enumerate(self.rows.values()):
            for outcome in outcomes:
                completed = outcome.status is OutcomeStatus.COMPLETED
                scores.add(row, outcome.mean_reward if completed else None, completed=completed)
        return scores.summary()

    @property
    def pass_at_k(self) -> dict[int, float]:
        """The mean of pass@k over the rows, by k. A rollout passes with a reward of at least 1."""
        return {k: found.mean for k, found in self.summary().pass_at_k.items()}

    def __repr__(self) -> str:
        mean = "none" if self.mean_reward is None else f"{self.mean_reward:.4g}"
        return f"Evaluation(n={self.n}, failed={self.failed}, mean_reward={mean})"


def _index(outcome: RolloutOutcome) -> int:
    return outcome.group.index if outcome.group else 0
