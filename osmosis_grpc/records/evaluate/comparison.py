"""Compares two runs over the same dataset, row by row."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.records.evaluate.errors import RunError
from osmosis_grpc.records.evaluate.inputs import Inputs, changes
from osmosis_grpc.records.evaluate.results import RowResult
from osmosis_grpc.records.evaluate.run_folder import RunFolder
from osmosis_grpc.trainer.score_statistics import Estimate, Scores, bounds, estimate

REWARD = "reward"
"""The name of the agent's own reward."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """The mean scores of one row in both runs."""

    row: int
    before: float
    after: float

    @property
    def difference(self) -> float:
        """The second mean minus the first one."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class PassPair:
    """pass@k of two runs for one k, over the rows that have enough rollouts in both."""

    rows: int
    before: Estimate
    after: Estimate
    difference: Estimate

    @classmethod
    def of(cls, before: Mapping[int, float], after: Mapping[int, float]) -> "PassPair | None":
        """Pair the pass@k values of the rows in two runs. Return None if the runs have no row in common."""
        pairs = [(before[row], after[row]) for row in sorted(before.keys() & after.keys())]
        return cls(len(pairs), *_estimates(pairs)) if pairs else None

    def record(self) -> dict[str, Any]:
        """Return the pair as JSON."""
        return {
            "rows": self.rows,
            "a": self.before.record(),
            "b": self.after.record(),
            "difference": self.difference.record(),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The scores of one eval function, or the agent's own rewards, in two runs."""

    name: str
    rows: tuple[RowPair, ...]
    """The rows that have a score in both runs."""
    before: Estimate
    after: Estimate
    difference: Estimate
    """The mean difference over the rows, with a paired t interval."""
    only: tuple[tuple[int, ...], tuple[int, ...]]
    """The rows that have a score in the first run only, and in the second run only."""
    unscored: tuple[int, int] = (0, 0)
    """How many rollouts of `rows` have no score, in the first and in the second run."""
    passes: Mapping[int, PassPair] = field(default_factory=dict)
    """pass@k in both runs, by k. A failed rollout counts as not passed."""

    @property
    def better(self) -> list[RowPair]:
        """The rows that got better, the largest difference first."""
        return sorted((pair for pair in self.rows if pair.difference > 0), key=lambda pair: -pair.difference)

    @property
    def worse(self) -> list[RowPair]:
        """The rows that got worse, the largest difference first."""
        return sorted((pair for pair in self.rows if pair.difference < 0), key=lambda pair: pair.difference)

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return {
            "name": self.name,
            "rows": len(self.rows),
            "only_a": len(self.only[0]),
            "only_b": len(self.only[1]),
            "unscored_a": self.unscored[0],
            "unscored_b": self.unscored[1],
            "rows_only_a": list(self.only[0]),
            "rows_only_b": list(self.only[1]),
            "a": self.before.record(),
            "b": self.after.record(),
            "difference": {**self.difference.record(), "method": "paired t interval over rows"},
            "better": [_record(pair) for pair in self.better],
            "worse": [_record(pair) for pair in self.worse],
            "same": len(self.rows) - len(self.better) - len(self.worse),
            "pass_at_k": {str(k): pair.record() for k, pair in self.passes.items()},
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """How many rollouts of two runs completed, and which rows fail in one run only."""

    completed: tuple[int, int]
    total: tuple[int, int]
    mended: tuple[int, ...]
    """The rows that have a failed rollout in the first run and none in the second run."""
    broken: tuple[int, ...]
    """The rows that have a failed rollout in the second run and none in the first run."""

    @classmethod
    def of(cls, first: RunFolder, second: RunFolder) -> "Ended":
        """Compare how the rollouts of two runs ended. Only the newest result of each rollout counts."""
        runs = [list(folder.newest_results().values()) for folder in (first, second)]
        rows = [{result.row_index for result in run} for run in runs]
        failed = [{result.row_index for result in run if not result.completed} for run in runs]
        both = rows[0] & rows[1]
        completed = [sum(result.completed for result in run) for run in runs]
        return cls(
            (completed[0], completed[1]),
            (len(runs[0]), len(runs[1])),
            tuple(sorted(both & failed[0] - failed[1])),
            tuple(sorted(both & failed[1] - failed[0])),
        )

    def record(self) -> dict[str, Any]:
        """Return the values as JSON."""
        (completed_a, completed_b), (rollouts_a, rollouts_b) = self.completed, self.total
        return {
            "completed_a": completed_a,
            "completed_b": completed_b,
            "rollouts_a": rollouts_a,
            "rollouts_b": rollouts_b,
            "rows_mended": list(self.mended),
            "rows_broken": list(self.broken),
        }


def compare(first: RunFolder, second: RunFolder) -> list[Comparison]:
    """Return a comparison for each eval function that both runs have, and for the rewards of the agents.

    Raises RunError if the runs are over different datasets, or have no scores in common.
    """
    different = [text for text in differences(first, second) if text.startswith("dataset ")]
    if different:
        raise RunError(
            f"{first.path} and {second.path} are runs over different datasets, so their rows are not the same: "
            f"{different[0]}"
        )
    results = [list(folder.newest_results().values()) for folder in (first, second)]
    scores = [_scores(each) for each in results]
    without = [_unscored(each) for each in results]
    passes = _passes((first, second), results)
    names = [name for name in scores[0] if name in scores[1]]
    found = [
        made
        for name in names
        if (made := _compared(name, (scores[0][name], scores[1][name]), without, passes.get(name, {})))
    ]
    if not found:
        known = (", ".join(each) or "none" for each in scores)
        raise RunError("no row has a score of the same function in both runs; they have: " + "; ".join(known))
    return found


def differences(first: RunFolder, second: RunFolder) -> list[str]:
    """Describe each group of inputs that differs. Skip groups that one of the runs has not recorded."""
    then, now = (folder.about.get("inputs", {}) for folder in (first, second))
    known: Inputs = {name: parts for name, parts in now.items() if name in then}
    return changes(then, known)


def _scores(results: Iterable[RowResult]) -> dict[str, Mapping[int, float]]:
    found: dict[str, Scores] = {}
    for result in results:
        given = dict(result.scores or {})
        if result.reward is not None:
            given[REWARD] = result.reward
        for name, score in given.items():
            found.setdefault(name, Scores()).add(result.row_index, score, completed=True)
    return {name: scores.means() for name, scores in found.items()}


def _unscored(results: Iterable[RowResult]) -> dict[str, Counter[int]]:
    """Return how many rollouts of each row lack a score, by name of the score. A failed rollout lacks every score."""
    kept = list(results)
    names = {REWARD, *(name for result in kept for name in result.scores or {})}
    return {
        name: Counter(
            result.row_index
            for result in kept
            if (result.reward if name == REWARD else (result.scores or {}).get(name)) is None
        )
        for name in names
    }


def _passes(
    folders: tuple[RunFolder, RunFolder], results: Sequence[Iterable[RowResult]]
) -> dict[str, dict[int, PassPair]]:
    """Return pass@k in both runs, by eval function and k, or {} if the runs have different thresholds or none."""
    first, second = (folder.about for folder in folders)
    threshold = first.get("pass_threshold")
    if threshold is None or threshold != second.get("pass_threshold"):
        return {}
    found = {}
    functions = [set(about.get("eval_fns") or [REWARD]) for about in (first, second)]
    for name in sorted(functions[0] & functions[1]):
        both = [Scores(threshold), Scores(threshold)]
        for scores, each in zip(both, results, strict=True):
            for result in each:
                scores.add(result.row_index, (result.scores or {}).get(name), completed=result.completed)
        before, after = (scores.passes() for scores in both)
        pairs = {k: PassPair.of(before[k], after[k]) for k in sorted(before.keys() & after.keys())}
        found[name] = {k: pair for k, pair in pairs.items() if pair is not None}
    return found


def _compared(
    name: str,
    means: tuple[Mapping[int, float], Mapping[int, float]],
    without: Sequence[Mapping[str, Counter[int]]],
    passes: Mapping[int, PassPair],
) -> Comparison | None:
    before, after = means
    rows = tuple(RowPair(row, before[row], after[row]) for row in sorted(before.keys() & after.keys()))
    if not rows:
        return None
    first, second = (sum(each[name][pair.row] for pair in rows) for each in without)
    return Comparison(
        name,
        rows,
        *_estimates([(pair.before, pair.after) for pair in rows]),
        (tuple(sorted(before.keys() - after.keys())), tuple(sorted(after.keys() - before.keys()))),
        (first, second),
        passes,
    )


def _estimates(pairs: Sequence[tuple[float, float]]) -> tuple[Estimate, Estimate, Estimate]:
    """Return the mean of the first values, of the second values, and of the differences."""
    low, high = bounds(value for pair in pairs for value in pair)
    return (
        estimate([[first] for first, _ in pairs], bounds(first for first, _ in pairs)),
        estimate([[second] for _, second in pairs], bounds(second for _, second in pairs)),
        estimate([[second - first] for first, second in pairs], (low - high, high - low)),
    )


def _record(pair: RowPair) -> dict[str, Any]:
    return {"row_index": pair.row, "a": pair.before, "b": pair.after, "difference": pair.difference}
