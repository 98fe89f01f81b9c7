"""Puts numbers, durations and rewards into words."""

from osmosis_grpc.protocol.types import RolloutOutcome, Segment, SplitReason, events

INTERRUPTED = "INTERRUPTED"
"""The state shown for an unfinished rollout while no process runs it. The server resumes it when it starts again."""
_SPLITS = {
    SplitReason.HISTORY_CHANGED: "its history continues no earlier turn: earlier messages were changed or left out",
    SplitReason.BRANCH: "its history continues a turn that another turn continues already",
    SplitReason.TOKENS_DIFFER: "its prompt does not repeat the tokens of the turn that it continues",
    SplitReason.RECORDED: "it continues a recorded turn of the rollout from which this one forks",
    SplitReason.JUDGE: "it continues a turn of a judge",
    SplitReason.NO_TOKENS: "the tokens of the turn that it continues are not known",
}


def split_text(segment: Segment | events.SegmentClosed) -> str:
    """Return why a segment began, or an empty string for the first segment of a sample."""
    if segment.drift_index is not None:  # earlier versions recorded no other reason
        return f"its prompt differs from the tokens of the turn that it continues at token {segment.drift_index}"
    return "" if segment.split is None else _SPLITS[segment.split]


def pinned_text(asked: events.ChatRequested) -> str:
    """Describe the sampling parameters of the agent that pinned ones replaced. Return "" if there are none."""
    passed = asked.passed
    if passed is None:
        return ""
    changed = {name: passed.get(name, "nothing") for name in {**passed, **asked.params}}
    differ = [f"{name} {value}" for name, value in changed.items() if asked.params.get(name) != passed.get(name)]
    return f"the agent passed {', '.join(differ)}"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1."""
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
    """Return the rollout's reward, or else the mean of the samples' rewards, as a text."""
    mean = outcome.mean_reward
    if outcome.reward is not None or mean is None:
        return "no reward" if mean is None else f"reward {mean:g}"
    rewarded = sum(sample.reward is not None for sample in outcome.samples.values())
    return f"reward {mean:g} (mean of {counted(rewarded, 'sample')})"
