"""Statistics of one trajectory or of many."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What was counted. A value of which nothing is known is None."""

    trajectories: int
    completed: int
    steps: dict[str, int]
    """The number of steps by type."""
    tool_calls: dict[str, int]
    """The number of calls by tool."""
    malformed_calls: int
    tool_success_rate: float | None
    """The part of the tool results that are no errors."""
    tokens: int | None
    """The tokens of all chats; None if a trajectory does not know its tokens."""
    latency_p50: float | None
    """The median of the seconds that a reply took."""
    latency_p95: float | None
    reward_mean: float | None
    """The mean of the final rewards that are set."""
    reward_std: float | None
    """Their standard deviation, as of a whole population."""
    rewarded: int
    """The number of trajectories with a final reward."""
    stop_reasons: dict[str, int]

    def __str__(self) -> str:
        rate = "" if self.tool_success_rate is None else f"; {self.tool_success_rate:.0%} of the results are no errors"
        malformed = f"; {self.malformed_calls} malformed" if self.malformed_calls else ""
        lines = [
            f"{self.trajectories} trajectories, {self.completed} completed",
            f"ends: {_counts(self.stop_reasons)}",
            f"steps: {_counts(self.steps)}",
            f"tool calls: {_counts(self.tool_calls)}{rate}{malformed}",
        ]
        if self.reward_mean is not None:
            lines.append(f"reward: mean {self.reward_mean:.4g}, deviation {self.reward_std:.4g}, of {self.rewarded}")
        if self.latency_p50 is not None:
            lines.append(f"seconds for a reply: median {self.latency_p50:.3g}, p95 {self.latency_p95:.3g}")
        return "\n".join([*lines, f"tokens: {'unknown' if self.tokens is None else self.tokens}"])


def statistics_of(trajectories: Trajectory | Iterable[Trajectory]) -> Statistics:
    """Return the statistics of a trajectory, or of several together."""
    made = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
    steps = [step for each in made for step in each.steps]
    results = [step for step in steps if step.step_type is StepType.ACTION_RESULT]
    latencies = sorted(
        step.duration for step in steps if step.duration is not None and step.step_type is not StepType.ACTION_RESULT
    )
    rewards = [each.final_reward for each in made if each.final_reward is not None]
    counted = [each.total_tokens for each in made]
    return Statistics(
        trajectories=len(made),
        completed=sum(each.is_completed for each in made),
        steps={kind.value: sum(step.step_type is kind for step in steps) for kind in StepType},
        tool_calls=dict(Counter(str(step.tool_name) for each in made for step in each.get_tool_calls())),
        malformed_calls=sum(len(each.get_malformed_calls()) for each in made),
        tool_success_rate=sum(not step.failed for step in results) / len(results) if results else None,
        tokens=sum(count for count in counted if count is not None) if made and None not in counted else None,
        latency_p50=percentile(latencies, 0.5),
        latency_p95=percentile(latencies, 0.95),
        reward_mean=statistics.fmean(rewards) if rewards else None,
        reward_std=statistics.pstdev(rewards) if rewards else None,
        rewarded=len(rewards),
        stop_reasons=dict(Counter(each.stop_reason.value for each in made if each.stop_reason is not None)),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the smallest value that at least this part of the values does not exceed; None without values."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None
