"""The statistics of scores: means with confidence intervals, and pass@k."""

import functools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVEL = 0.95
"""The level of the confidence intervals."""
SMALL = (12.70620474, 4.30265273, 3.18244631, 2.77644511, 2.57058184, 2.44691185, 2.36462425, 2.30600414, 2.26215716)
"""The t quantiles of 1 to 9 degrees of freedom at LEVEL."""

ROUNDING = 1e-6
"""Rewards count as equal if they differ by at most this fraction of the largest: float32 sums can be off by as much."""


def all_equal(rewards: Collection[float]) -> bool:
    """Return whether all rewards are equal, apart from rounding."""
    return len(rewards) < 2 or max(rewards) - min(rewards) <= ROUNDING * max(map(abs, rewards))


@functools.lru_cache(100_000)
def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k runs passes, if c of n runs passed: 1 - C(n-c, k) / C(n, k).

    The k runs are drawn from the n runs without replacement. The result is rounded once. Raises ValueError unless
    1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} of {c} of {n} is not defined")
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error and confidence interval, which are None for fewer than two rows."""

    mean: float
    stderr: float | None
    """The standard error of the mean."""
    ci95: tuple[float, float] | None

    def record(self) -> dict[str, Any]:
        """Return the estimate as JSON."""
        return {"mean": self.mean, "stderr": self.stderr, "ci95": None if self.ci95 is None else list(self.ci95)}


def estimate(rows: Sequence[Sequence[float]], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Return the mean of all values. `rows` has the values of each row; a row has at least one.

    The standard error is cluster-robust, with rows as clusters. If all rows have the same number of values, it is the
    standard deviation of the row means divided by the square root of the number of rows. `bounds` limit the interval.
    """
    count = sum(map(len, rows))
    mean = math.fsum(value for row in rows for value in row) / count
    if len(rows) < 2:
        return Estimate(mean, None, None)
    squares = math.fsum(math.fsum(value - mean for value in row) ** 2 for row in rows)
    stderr = math.sqrt(len(rows) / (len(rows) - 1) * squares) / count
    reach = t_quantile(len(rows) - 1) * stderr
    return Estimate(mean, stderr, (max(bounds[0], mean - reach), min(bounds[1], mean + reach)))


def bounds(values: Iterable[float]) -> tuple[float, float]:
    """Return the bounds of an interval: 0 and 1 if all values are between 0 and 1, otherwise infinite ones."""
    return (0.0, 1.0) if all(0 <= value <= 1 for value in values) else (-math.inf, math.inf)


def t_quantile(freedom: int) -> float:
    """Return the x for which a t-distributed variable lies between -x and x with probability LEVEL, exact to 1e-5."""
    if freedom <= len(SMALL):
        return SMALL[freedom - 1]
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (  # of the expansion in 1 / freedom: Abramowitz and Stegun, 26.7.5
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """The statistics of one eval function."""

    scored: int
    """The number of runs with a score."""
    failed: int
    """The number of completed runs whose score failed."""
    mean: Estimate | None
    """The mean score; None if there are no scores."""
    std: float | None
    """The standard deviation of the scores of all runs."""
    low: float | None
    high: float | None
    pass_at_k: Mapping[int, Estimate]
    """pass@k by k, for each k from 1 on for which some row has enough runs."""

    def record(self) -> dict[str, Any]:
        """Return the summary as JSON. The fields pass_at_1, pass_at_2 and so on are those of the Osmosis SDK."""
        mean = Estimate(math.nan, None, None) if self.mean is None else self.mean
        return {
            "scored": self.scored,
            "failed": self.failed,
            **mean.record(),
            "mean": None if self.mean is None else mean.mean,
            "std": self.std,
            "min": self.low,
            "max": self.high,
            **{f"pass_at_{k}": found.mean for k, found in self.pass_at_k.items()},
            "pass_at_k": {str(k): found.record() for k, found in self.pass_at_k.items()},
        }


class Scores:
    """The scores of one eval function, by row. `threshold` is the lowest score that passes."""

    def __init__(self, threshold: float = 1.0) -> None:
        self._threshold = threshold
        self._rows: dict[int, list[float]] = {}
        self._missed: dict[int, int] = {}
        """The number of failed rollouts of each row. They count as not passed."""
        self._failed = 0

    def add(self, row: int, score: float | None, *, completed: bool) -> None:
        """Add a run of a row. A rollout that did not complete counts as not passed. A failed score does not count."""
        if score is not None:
            self._rows.setdefault(row, []).append(score)
        elif completed:
            self._failed += 1
        else:
            self._missed[row] = self._missed.get(row, 0) + 1

    def means(self) -> dict[int, float]:
        """Return the mean score of each row that has one."""
        return {row: math.fsum(scores) / len(scores) for row, scores in self._rows.items()}

    def summary(self) -> ScoreSummary:
        """Return the statistics."""
        scores = [score for row in self._rows.values() for score in row]
        return ScoreSummary(
            scored=len(scores),
            failed=self._failed,
            mean=estimate(list(self._rows.values()), bounds(scores)) if scores else None,
            std=statistics.stdev(scores) if len(scores) > 1 else None,
            low=min(scores, default=None),
            high=max(scores, default=None),
            pass_at_k=self._pass_at_k(),
        )

    def passes(self) -> dict[int, dict[int, float]]:
        """Return pass@k by k and row. A row has a value for each k up to the number of its runs."""
        found: dict[int, dict[int, float]] = {}
        for row in self._rows.keys() | self._missed.keys():
            scores = self._rows.get(row, [])
            n, c = len(scores) + self._missed.get(row, 0), sum(each >= self._threshold for each in scores)
            for k in range(1, n + 1):
                found.setdefault(k, {})[row] = pass_at_k(n, c, k)
        return found

    def _pass_at_k(self) -> dict[int, Estimate]:
        return {k: estimate([[each] for each in rows.values()], (0.0, 1.0)) for k, rows in self.passes().items()}


def shown_k(known: Collection[int]) -> list[int]:
    """Return the values of k to show: the powers of two, and the largest one."""
    return [k for k in sorted(known) if k.bit_count() == 1 or k == max(known)]
