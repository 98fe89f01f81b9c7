"""Metric values and their families in plain Python, without Prometheus, and the metrics of every process."""

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from osmosis_grpc import __version__, supervise

OTHER = "other"
"""The label value shared by all names that have no label value of their own."""

FINISH_REASONS = frozenset(
    (
        "abort",
        "cancelled",
        "content_filter",
        "crashed_server",
        "error",
        "length",
        "max_tokens",
        "max_turns",
        "replay",
        "restart",
        "shutdown",
        "stop",
        "superseded",
        "timeout",
        "tool_calls",
        "trainer_lost",
    )
)
"""The finish reasons with a label value of their own. Agents can return any text, so all others become OTHER."""
ROLLOUT_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
CHAT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

Labels = tuple[str, ...]
"""The label values of one metric value, in the order of the family's labels."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name on the page, its type, its description and its labels."""

    name: str
    """The name in Prometheus spelling. A counter ends in _total."""
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: Labels = ()


class Histogram:
    """Counts values by buckets. `bounds` are the upper bounds of the buckets. A bucket includes its bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One count for each bound, and one for the values above the last bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Summary:
    """The number of values, and their sum."""

    count: float
    total: float


Value = float | Histogram | Summary
Reading = tuple[Family, Iterable[tuple[Labels, Value]]]
"""A family, and its values with their labels."""


class Source(Protocol):
    """An object with metrics."""

    def read(self) -> Iterator[Reading]:
        """Yield every family, even one without values. Runs on the event loop, so it must be fast."""


def single(family: Family, value: Value) -> Reading:
    """Return the reading of a family without labels."""
    return family, [((), value)]


def by_name(family: Family, values: Mapping[str, Value]) -> Reading:
    """Return the reading of a family with one label."""
    return family, [((name,), value) for name, value in list(values.items())]


class Histograms:
    """Histograms of one family, by label values."""

    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        self.family = family
        self._bounds = bounds
        self._made: dict[Labels, Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """Return the histogram of these label values. The caller must limit the number of different values."""
        made = self._made.get(labels)
        if made is None:
            made = self._made[labels] = Histogram(self._bounds)
        return made

    def read(self) -> Reading:
        """Return the reading of the family."""
        return self.family, list(self._made.items())


class Names:
    """A bounded set of label values. The first `most` names get label values of their own, and all later ones OTHER."""

    LONGEST = 64

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def add(self, name: object) -> None:
        """Add a name if there is room and it is printable and short."""
        if not isinstance(name, str) or name in self._known or len(self._known) >= self._most:
            return
        if 0 < len(name) <= self.LONGEST and name.isprintable():
            self._known.add(name)

    def label(self, name: str) -> str:
        """Return the label value of a name."""
        return name if name in self._known else OTHER


BUILD = Family("osmosis_build_info", "gauge", "1. The label names the version of osmosis_grpc.", ("version",))
FAILURES = Family(
    "osmosis_supervised_failures_total", "counter", "Failures of background jobs, by the job's name.", ("job",)
)
LINES = Family("osmosis_log_lines_dropped_total", "counter", "Log lines dropped: stderr takes them too slowly.")


def failures(counts: Mapping[str, int]) -> Reading:
    """Return a reading of the failures of all jobs, including jobs without any. `counts` come from a supervisor."""
    alone = supervise.failures
    names = [*supervise.declared(), *counts.keys() - supervise.declared().keys()]
    return by_name(FAILURES, {name: float(counts.get(name, 0) + alone[name]) for name in names})


class ProcessMetrics:
    """The metrics of every process of this project."""

    def read(self) -> Iterator[Reading]:
        """See Source."""
        yield BUILD, [((__version__,), 1.0)]
        yield single(LINES, sum(getattr(handler, "dropped", 0) for handler in logging.getLogger().handlers))
