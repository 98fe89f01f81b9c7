"""Puts numbers, durations and rewards into words."""

from osmosis_grpc.types import RolloutOutcome


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """Return a duration for people, such as 0.4s, 12s, 3:05 or 2:03:04."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def reward_text(outcome: RolloutOutcome) -> str:
    """Return the rollout's reward as a text. Without one, return the mean of the samples' rewards."""
    mean = outcome.mean_reward
    if outcome.reward is not None or mean is None:
        return "no reward" if mean is None else f"reward {mean:g}"
    rewarded = sum(sample.reward is not None for sample in outcome.samples.values())
    return f"reward {mean:g} (mean of {counted(rewarded, 'sample')})"
