"""Rollouts that measure the policy: Trainer.evaluate()."""

from dataclasses import dataclass

from osmosis_grpc.types import OutcomeStatus, RolloutOutcome


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
        """The mean of the rollouts' rewards; None without a reward.

        A rollout without a reward of its own counts with the mean of its samples' rewards.
        """
        rewards = [reward for outcome in self.outcomes if (reward := outcome.mean_reward) is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def __repr__(self) -> str:
        mean = "none" if self.mean_reward is None else f"{self.mean_reward:.4g}"
        return f"Evaluation(n={self.n}, failed={self.failed}, mean_reward={mean})"
