"""The metrics of a trainer: as a flat dict for W&B, TensorBoard or MLflow, and as metric families for Prometheus.

Metrics counts outcomes and policy replies. It does not depend on a transport, and starts no task.
"""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from osmosis_grpc.observability import Calls, Histogram
from osmosis_grpc.observability.metric_families import (
    CHAT_SECONDS,
    OTHER,
    ROLLOUT_SECONDS,
    Family,
    Labels,
    Reading,
    Source,
    failures,
    single,
)
from osmosis_grpc.protocol.types import ChatResponse, FailureReason, OutcomeStatus, RolloutOutcome, RolloutRequest


def version_lag(outcome: RolloutOutcome, version: str | int) -> float | None:
    """Return how many versions the oldest sampled token of an outcome is behind `version`.

    Args:
        outcome: The outcome.
        version: The version to compare with, usually the version of the next step.

    Returns:
        The number of versions; None if the outcome has no sampled tokens, or if a version is missing or no number.
    """
    current = version_number(str(version))
    segments = [segment for sample in outcome.samples.values() for segment in sample.segments if segment.sampled]
    numbers = [version_number(span.version) for segment in segments for span in segment.versions]
    if current is None or not all(segment.versions for segment in segments):
        return None
    known = [number for number in numbers if number is not None]
    return current - min(known) if known and len(known) == len(numbers) else None


def version_number(version: str) -> float | None:
    """Return a version as a number; None if it is not a finite number."""
    try:
        number = float(version)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


RECENT = 1024
"""Means and percentiles cover this many of the newest values."""
MAX_REASONS = 64
"""At most this many kinds of failure are counted by name. Others are counted as `failures/other`."""
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
        """Add a value. If there are more than RECENT, drop the oldest."""
        self._values.append(value)

    def read(self, name: str, *statistics: str) -> Iterator[tuple[str, float]]:
        """Yield the named statistics of _STATISTICS, or nothing if there are no values."""
        values = list(self._values)
        if values:
            yield from ((f"{name}/{statistic}", float(_STATISTICS[statistic](values))) for statistic in statistics)


class Tally:
    """Counts outcomes, either those of training or those of evaluations."""

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
        if outcome.from_journal is not None:  # the times and versions belong to an earlier run
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
        """The RPCs that the trainer answers, and those that it makes."""

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


_EVALUATION = "evaluation"
ROLLOUTS = Family(
    "osmosis_trainer_rollouts_total",
    "counter",
    "Rollouts that ended. A rollout that no server accepted counts, too.",
    ("status", _EVALUATION),
)
FROM_JOURNAL = Family(
    "osmosis_trainer_rollouts_from_journal_total",
    "counter",
    "Of these, outcomes of an earlier run of the server.",
    (_EVALUATION,),
)
_REASONS = frozenset(str(reason) for reason in FailureReason)
FAILURES = Family(
    "osmosis_trainer_failures_total",
    "counter",
    "Failures by boundary and reason. Refused rollouts count, too.",
    ("boundary", "reason", _EVALUATION),
)
REWARD = Family("osmosis_trainer_reward_mean", "gauge", "Mean of the newest 1,024 rewards.", (_EVALUATION,))
LAG_MEAN = Family(
    "osmosis_trainer_policy_lag_mean",
    "gauge",
    "Mean number of versions that an outcome's oldest token is behind.",
    (_EVALUATION,),
)
LAG_MAX = Family(
    "osmosis_trainer_policy_lag_max",
    "gauge",
    "Largest number of versions that an outcome's oldest token is behind.",
    (_EVALUATION,),
)
DURATION = Family(
    "osmosis_trainer_rollout_duration_seconds", "histogram", "Time that rollouts took on their server.", (_EVALUATION,)
)
CHAT_DURATION = Family("osmosis_trainer_chat_duration_seconds", "histogram", "Time that policy calls took.")
OPEN = Family("osmosis_trainer_rollouts_open", "gauge", "Unfinished rollouts.")
CHATS_OPEN = Family("osmosis_trainer_chats_open", "gauge", "Policy calls in flight.")
CHATS = Family("osmosis_trainer_chats_total", "counter", "Policy calls: answered, or failed.", ("result",))
TOKENS = Family("osmosis_trainer_tokens_total", "counter", "Tokens of policy calls: prompt or sampled.", ("kind",))
VERSION = Family("osmosis_trainer_policy_version", "gauge", "The policy's version, if it is a number.")

_BY_KIND = (ROLLOUTS, FROM_JOURNAL, FAILURES, REWARD, LAG_MEAN, LAG_MAX)
_FAMILIES = (*_BY_KIND, OPEN, CHATS_OPEN, CHATS, TOKENS, VERSION)
_NAMES: dict[str, tuple[Family, Labels]] = {
    "rollouts/from_journal": (FROM_JOURNAL, ()),
    "rollouts/open": (OPEN, ()),
    "chats/open": (CHATS_OPEN, ()),
    "chats/answered": (CHATS, ("answered",)),
    "chats/failed": (CHATS, ("failed",)),
    "tokens/prompt": (TOKENS, ("prompt",)),
    "tokens/sampled": (TOKENS, ("sampled",)),
    "reward/mean": (REWARD, ()),
    "policy/lag/mean": (LAG_MEAN, ()),
    "policy/lag/max": (LAG_MAX, ()),
    "policy/version": (VERSION, ()),
}
"""Maps the names of metrics() to their family and labels."""


class TrainerMetrics(Source):
    """The metrics of one trainer as a Source. Any thread may read it.

    `flat` is the trainer's metrics(). `failed` counts the failures of its background jobs.
    """

    def __init__(self, metrics: Metrics, flat: Callable[[], dict[str, float]], failed: Mapping[str, int]) -> None:
        self._metrics = metrics
        self._flat = flat
        self._failed = failed

    def read(self) -> Iterator[Reading]:
        found: dict[Family, defaultdict[Labels, float]] = {family: defaultdict(float) for family in _FAMILIES}
        for name, value in self._flat().items():
            known = _family_of(name)
            if known is not None:
                family, labels = known
                found[family][labels] += value
        for family, values in found.items():
            yield family, [*values.items()]
        training, evaluation = self._metrics.durations
        yield DURATION, [(("false",), training), (("true",), evaluation)]
        yield single(CHAT_DURATION, self._metrics.chat_durations)
        yield failures(self._failed)
        yield from self._metrics.answered_calls.read()
        yield from self._metrics.made_calls.read()


def _family_of(name: str) -> tuple[Family, Labels] | None:
    plain = name.removeprefix("evaluation/")
    first, _, rest = plain.partition("/")
    if plain in _NAMES:
        family, labels = _NAMES[plain]
    elif first == "rollouts":
        family, labels = ROLLOUTS, (rest.upper(),)
    elif first == "failures":
        boundary, _, reason = rest.partition("/")
        known = boundary == "refused" or reason in _REASONS
        family, labels = FAILURES, (boundary, reason if known else OTHER)
    else:
        return None
    return family, (*labels, "true" if plain != name else "false") if family in _BY_KIND else labels
