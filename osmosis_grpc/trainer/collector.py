"""A trainer's metrics for Prometheus: the values of metrics(), histograms, and RPC metrics named as in gRFC A66."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from osmosis_grpc.observability.metric_families import OTHER, Family, Labels, Reading, Source, single
from osmosis_grpc.observability.process_metrics import failures
from osmosis_grpc.protocol.types import FailureReason
from osmosis_grpc.trainer.metrics import Metrics

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
"""Names of metrics() with their family and labels."""


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
