"""Counts what a trainer does, as a flat dict for W&B, TensorBoard or MLflow.

Metrics is called with outcomes and policy replies; it knows no transport and starts no task.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from osmosis_grpc.observability import Calls, Histogram
from osmosis_grpc.observability.metric_families import CHAT_SECONDS, ROLLOUT_SECONDS
from osmosis_grpc.protocol.types import ChatResponse, OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.trainer.staleness import version_lag, version_number

RECENT = 1024
"""Means and percentiles are computed from this many of the newest values."""
MAX_REASONS = 64
"""The most kinds of failure that are counted by name; others are counted as `failures/other`."""
_REASON_CHARS = 64
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]", re.ASCII)
"""Characters that MLflow does not allow in a name."""


_STATISTICS: dict[str, Callable[[list[float]], Any]] = {
    "mean": np.mean,
    "p50": partial(np.percentile, q=50),
    "p95": partial(np.percentile, q=95),
    "max": max,
}

_COUNTS = (
    "chats/answered",
    "chats/failed",
    "rollouts/not_trainable",
    "samples/trainable",
    "samples/segments",
    "samples/cut",
    "replies/dropped",
    "tokens/prompt",
    "tokens/sampled",
)


class Recent:
    """The newest values of one quantity. Any thread may read them."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=RECENT)

    def add(self, value: float) -> None:
        """Add a value. If there are too many values, drop the oldest value."""
        self._values.append(value)

    def read(self, name: str, *statistics: str) -> Iterator[tuple[str, float]]:
        """Yield the named statistics of _STATISTICS for the values. Yield nothing without a value."""
        values = list(self._values)
        if values:
            yield from ((f"{name}/{statistic}", float(_STATISTICS[statistic](values))) for statistic in statistics)


class Tally:
    """Counts the outcomes of training, or of evaluations."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys([*map(_status, OutcomeStatus), "rollouts/from_journal"], 0))
        """The counts by name. Any thread may read them."""
        self._failures: Counter[str] = Counter()
        self._rewards, self._seconds, self._lags = Recent(), Recent(), Recent()

    def ended(self, outcome: RolloutOutcome, version: str) -> None:
        """Count an outcome. `version` is the policy's current version."""
        self.counts[_status(outcome.status)] += 1
        if outcome.failure is not None:
            reason = _NOT_IN_NAMES.sub("_", (outcome.failure.reason or outcome.finish_reason)[:_REASON_CHARS])
            self._failed(f"{outcome.failure.boundary}/{reason or 'error'}")
        reward = outcome.mean_reward
        if reward is not None:
            self._rewards.add(reward)
        if outcome.from_journal is not None:  # its times and versions belong to an earlier run
            self.counts["rollouts/from_journal"] += 1
            return
        self._seconds.add(outcome.metrics.total_latency_ms / 1000)
        lag = version_lag(outcome, version)
        if lag is not None:
            self._lags.add(lag)

    def refused(self, error: BaseException) -> None:
        """Count a rollout that no server accepted."""
        self.counts[_status(OutcomeStatus.FAILED)] += 1
        self._failed(f"refused/{type(error).__name__}")

    def items(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the names with their values."""
        for name, count in [*self.counts.items(), *self._failures.items()]:
            yield f"{prefix}{name}", float(count)
        yield from self._rewards.read(f"{prefix}reward", "mean")
        yield from self._seconds.read(f"{prefix}rollout_seconds", "mean", "p50", "p95")
        yield from self._lags.read(f"{prefix}policy/lag", "mean", "max")

    def _failed(self, reason: str) -> None:
        name = f"failures/{reason}"
        known = name in self._failures or len(self._failures) < MAX_REASONS
        self._failures[name if known else "failures/other"] += 1


class Metrics:
    """The metrics of one trainer since its start. See Trainer.metrics()."""

    def __init__(self) -> None:
        self._training, self._evaluation = Tally(), Tally()
        self._counts = Counter(dict.fromkeys(_COUNTS, 0))
        self._chat_seconds = Recent()
        self.durations = Histogram(ROLLOUT_SECONDS), Histogram(ROLLOUT_SECONDS)
        """The durations of rollouts for training, and of evaluations."""
        self.chat_durations = Histogram(CHAT_SECONDS)
        self.answered_calls, self.made_calls = Calls("server"), Calls("client")
        """The RPCs that the trainer answers and makes."""

    def ended(self, outcome: RolloutOutcome, version: str) -> None:
        """Count an outcome. `version` is the policy's current version."""
        self._tally(outcome).ended(outcome, version)
        if outcome.from_journal is None:
            self.durations[outcome.evaluation].observe(outcome.metrics.total_latency_ms / 1000)
        if outcome.evaluation or outcome.status is not OutcomeStatus.COMPLETED:
            return
        samples = outcome.trainable_samples().values()
        self._counts["rollouts/not_trainable"] += not samples
        self._counts["samples/trainable"] += len(samples)
        self._counts["samples/segments"] += sum(len(sample.segments) for sample in samples)
        self._counts["samples/cut"] += sum(bool(sample.cut) for sample in samples)
        self._counts["replies/dropped"] += sum(len(sample.dropped_chats) for sample in outcome.samples.values())

    def refused(self, request: RolloutRequest, error: BaseException) -> None:
        """Count a rollout that no server accepted."""
        self._tally(request).refused(error)

    def answered(self, reply: ChatResponse, seconds: float) -> None:
        """Count a policy call with its reply and its duration."""
        self._counts["chats/answered"] += 1
        self._chat_seconds.add(seconds)
        self.chat_durations.observe(seconds)
        prompt = None if reply.prompt_ids is None else reply.prompt_prefix + len(reply.prompt_ids)
        sampled = None if reply.tokens is None else len(reply.tokens.ids)
        self._counts["tokens/prompt"] += _used(reply, "prompt_tokens") if prompt is None else prompt
        self._counts["tokens/sampled"] += _used(reply, "completion_tokens") if sampled is None else sampled

    def unanswered(self) -> None:
        """Count a policy call without a reply."""
        self._counts["chats/failed"] += 1

    def read(self, *, open_rollouts: int, open_chats: int, version: str) -> dict[str, float]:
        """Return all values by name; see Trainer.metrics()."""
        values = dict(self._training.items(""))
        current = {"rollouts/open": open_rollouts, "chats/open": open_chats}
        values |= {name: float(value) for name, value in (current | self._counts).items()}
        values.update(self._chat_seconds.read("chat_seconds", "mean", "p50", "p95"))
        number = version_number(version)
        if number is not None:
            values["policy/version"] = number
        if self._evaluation.counts.total():
            values.update(self._evaluation.items("evaluation/"))
        return values

    def _tally(self, marked: RolloutOutcome | RolloutRequest) -> Tally:
        return self._evaluation if marked.evaluation else self._training


def _status(status: OutcomeStatus) -> str:
    return f"rollouts/{status.lower()}"


def _used(reply: ChatResponse, name: str) -> int:
    count = (reply.usage or {}).get(name)
    return count if isinstance(count, int) and count > 0 else 0
