"""Counted values and the families that they belong to, in plain Python.

The hot path adds to these. A scrape reads them; only exposition.py knows Prometheus.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

OTHER = "other"
"""The label value of everything that has no label value of its own."""

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
"""The finish reasons with a label value of their own. Agents may return any text."""
ROLLOUT_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
CHAT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

Labels = tuple[str, ...]
"""The values of a family's labels, in their order."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name on the page, its type, what it says, its labels."""

    name: str
    """As Prometheus spells it. A counter ends in _total."""
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: Labels = ()


class Histogram:
    """Counts values by buckets. `bounds` are the upper bounds, which belong to their buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound, and one for everything above the last."""
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Summary:
    """How many values there were, and their sum."""

    count: float
    total: float


Value = float | Histogram | Summary
Reading = tuple[Family, Iterable[tuple[Labels, Value]]]
"""A family with its values by label values."""


class Source(Protocol):
    """Something that has metrics."""

    def read(self) -> Iterator[Reading]:
        """Yields every family, also those without a value. Cheap: it runs on the event loop."""


def single(family: Family, value: Value) -> Reading:
    """Returns the reading of a family without labels."""
    return family, [((), value)]


def by_name(family: Family, values: Mapping[str, Value]) -> Reading:
    """Returns the reading of a family with one label."""
    return family, [((name,), value) for name, value in list(values.items())]


class Histograms:
    """Histograms of one family, by label values."""

    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        self.family = family
        self._bounds = bounds
        self._made: dict[Labels, Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """Returns the histogram of these label values. Their number is bounded by the caller."""
        made = self._made.get(labels)
        if made is None:
            made = self._made[labels] = Histogram(self._bounds)
        return made

    def read(self) -> Reading:
        """Returns the reading of the family."""
        return self.family, list(self._made.items())


class Names:
    """A bounded set of label values: the first ones that come, and OTHER for all further ones."""

    LONGEST = 64

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def add(self, name: object) -> None:
        """Give a name a label value of its own, if there is room and it is printable and short."""
        if not isinstance(name, str) or name in self._known or len(self._known) >= self._most:
            return
        if 0 < len(name) <= self.LONGEST and name.isprintable():
            self._known.add(name)

    def label(self, name: str) -> str:
        """Returns the label value of a name."""
        return name if name in self._known else OTHER
