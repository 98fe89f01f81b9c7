"""Compares two to four runs of test or eval over the same dataset, by their means and row by row."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from osmosis_grpc.records.evaluate import RunError, RunFolder
from osmosis_grpc.records.evaluate.comparison import Comparison, compare, differences
from osmosis_grpc.records.evaluate.results import RowResult
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.trainer.score_statistics import Estimate, shown_k
from osmosis_grpc.viewer.calls import TRUNCATED
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.tasks import Task, task_of

LEAST, MOST = 2, 4
"""The least and the most runs that can be compared."""
MOST_RUNS = 100
"""The most runs on a page. The newest are shown."""
MOST_ROWS = 200
"""The most rows on a page."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run, as described by its run.json."""

    name: str
    about: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary that was written at the end of the run; empty before."""
        return self.about.get("summary") or {}


@dataclass(frozen=True, slots=True)
class Value:
    """A mean in one run, and its difference from the mean in the first run. The first run has no difference."""

    mean: Estimate
    difference: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One score in all compared runs."""

    name: str
    values: tuple[Value | None, ...]
    """The value in each run; None if a run lacks the score."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Totals of a run. Means are over all rollouts with a result."""

    rollouts: int
    completed: int
    truncated: int
    """The number of rollouts that a limit of tokens or turns has cut off."""
    seconds: float
    tokens: float
    """The mean number of tokens of the replies."""

    @classmethod
    def of(cls, results: Collection[RowResult]) -> "Facts":
        """Return the facts of the results of a run."""
        count = max(1, len(results))
        return cls(
            rollouts=len(results),
            completed=sum(result.completed for result in results),
            truncated=sum(result.finish_reason in TRUNCATED for result in results),
            seconds=sum(result.duration_ms for result in results) / 1000 / count,
            tokens=sum(result.token_usage.get("completion_tokens", 0) for result in results) / count,
        )


@dataclass(frozen=True, slots=True)
class RowScores:
    """The mean scores of one row of the dataset, in each run."""

    index: int
    scores: tuple[float | None, ...]
    task: Task | None = None

    def better(self, at: int) -> bool | None:
        """Return whether a run has a better score than the first one; None if they are equal or one is missing."""
        first, other = self.scores[0], self.scores[at]
        return None if first is None or other is None or first == other else other > first

    @property
    def spread(self) -> float:
        """The largest score minus the smallest one."""
        known = [score for score in self.scores if score is not None]
        return max(known) - min(known) if known else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of some runs."""

    runs: tuple[RunSummary, ...]
    facts: tuple[Facts, ...]
    inputs: tuple[tuple[str, ...], ...]
    """For each run, its inputs that differ from those of the first run."""
    lines: tuple[Line, ...]
    scores: tuple[str, ...]
    """The names of the scores that the first run shares with another one."""
    score: str
    """The name of the score that the rows show."""
    rows: tuple[RowScores, ...]
    """The rows, the one with the largest difference first."""

    def verdict(self, at: int) -> tuple[int, int]:
        """Return how many rows have a better score in a run than in the first one, and how many have a worse one."""
        found = [row.better(at) for row in self.rows]
        return found.count(True), found.count(False)


def runs_beside(folder: Path) -> list[RunSummary]:
    """Return the runs in the parent folder of a run, the newest first; none if `folder` is not a run."""
    if not RunFolder.exists(folder):
        return []
    found: list[RunSummary] = []
    for path in sorted(folder.absolute().parent.iterdir(), reverse=True):
        if path.is_dir() and RunFolder.exists(path) and len(found) < MOST_RUNS:
            try:
                found.append(RunSummary(_name(path), RunFolder.open(str(path)).about))
            except RunError:
                continue  # written by another version
    return found


def _name(folder: Path) -> str:
    """Return the name of a run for a page and its URL. A byte that is not UTF-8 becomes U+FFFD."""
    return os.fsencode(folder.name).decode("utf-8", "replace")


def open_runs(folder: Path, names: Sequence[str]) -> list[RunFolder]:
    """Open runs in the parent folder of the run `folder`. Raises RunError if one does not exist."""
    known = {_name(path): path for path in folder.absolute().parent.iterdir()}
    for name in names:
        if name not in known or not RunFolder.exists(known[name]):
            raise RunError(f"run: there is no run {name!r} beside {folder}")
    if len(set(names)) != len(names) or not LEAST <= len(names) <= MOST:
        raise RunError(f"run: name {LEAST} to {MOST} different runs")
    return [RunFolder.open(str(known[name])) for name in names]


def summary_of(run: RunFolder) -> RunSummary:
    """Return a run for a page."""
    return RunSummary(_name(run.path), run.about)


def compare_runs(folder: Path, names: Sequence[str], score: str) -> Compared:
    """Compare runs in the parent folder of the run `folder`. Raises RunError if one does not exist.

    `score` is the name of the score to show in the rows; by default, the first one.
    """
    opened = open_runs(folder, names)
    first, others = opened[0], opened[1:]
    pairs = [{each.name: each for each in compare(first, other)} for other in others]
    scores = list(dict.fromkeys(name for pair in pairs for name in pair))
    if score and score not in scores:
        raise RunError(f"score: these runs have no score {score!r}; they have {', '.join(scores)}")
    shown = score or scores[0]
    return Compared(
        runs=tuple(map(summary_of, opened)),
        facts=tuple(Facts.of(each.newest_results().values()) for each in opened),
        inputs=((), *(tuple(differences(first, other)) for other in others)),
        lines=tuple(line for name in scores for line in _lines(name, [pair.get(name) for pair in pairs])),
        scores=tuple(scores),
        score=shown,
        rows=_rows([pair.get(shown) for pair in pairs], opened),
    )


def _lines(name: str, found: Sequence[Comparison | None]) -> list[Line]:
    first = next(each for each in found if each is not None)
    others = [None if each is None else Value(each.after, each.difference) for each in found]
    lines = [Line(name, (Value(first.before), *others))]
    for k in shown_k(first.passes):
        pairs = [None if each is None else each.passes.get(k) for each in found]
        rest = [None if pair is None else Value(pair.after, pair.difference) for pair in pairs]
        lines.append(Line(f"{name} pass@{k}", (Value(first.passes[k].before), *rest)))
    return lines


def _rows(found: Sequence[Comparison | None], opened: Sequence[RunFolder]) -> tuple[RowScores, ...]:
    scores: dict[int, list[float | None]] = {}
    for at, each in enumerate(found, 1):
        for pair in each.rows if each is not None else ():
            row = scores.setdefault(pair.row, [pair.before, *(None for _ in found)])
            row[at] = pair.after
    rows = [RowScores(index, tuple(values)) for index, values in scores.items()]
    rows.sort(key=lambda row: (-row.spread, row.index))
    tasks = _tasks(opened[0], [row.index for row in rows[:MOST_ROWS]])
    return tuple(replace(row, task=tasks.get(row.index)) for row in rows)


def rollouts_of(run: RunFolder) -> dict[int, str]:
    """Return the first rollout of each row, by the row's number."""
    return {row: found.rollout_id for (row, time), found in run.newest_results().items() if not time}


def _tasks(run: RunFolder, rows: Sequence[int]) -> dict[int, Task]:
    """Return the prompts and labels of rows, from the rollouts of a run. Skip rows that cannot be read."""
    source, rollouts = FolderSource(run.path), rollouts_of(run)

    async def read() -> dict[int, Task]:
        found = {}
        with suppress(SourceError), source.snapshot():
            for row in rows:
                with suppress(SourceError):
                    found[row] = task_of((await source.request(rollouts[row], 1))[0]) if row in rollouts else None
        return {row: task for row, task in found.items() if task is not None}

    return asyncio.run(read())  # this function runs on another thread


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    source = pages.reads.source
    folder = source.folder if isinstance(source, FolderSource) else Path()

    @routes.get("/runs")
    async def show(request: Request) -> Response:
        chosen = request.query_params.getlist("run")
        runs = await anyio.to_thread.run_sync(runs_beside, folder)
        if not runs:
            raise HTTPException(404, "the viewer shows no run of test or eval: osmosis-grpc view --from last")
        return pages.page("runs.html", runs=runs, here=folder.absolute().name, chosen=chosen, most=MOST, at="runs")

    @routes.get("/compare")
    async def compare(request: Request, score: str = "") -> Response:
        names = request.query_params.getlist("run")
        try:
            found = await anyio.to_thread.run_sync(compare_runs, folder, names, score)
        except (RunError, OSError) as error:
            raise HTTPException(400, f"{error}; compare {LEAST} to {MOST} runs from the page Runs") from None
        return pages.page(
            "compare.html",
            found=found,
            names=names,
            here=folder.absolute().name,
            most_rows=MOST_ROWS,
            sign=_sign,
            interval=_interval,
            at="runs",
        )

    return routes


def _sign(found: Estimate) -> str:
    """Return good or bad if the interval of a difference excludes 0, else an empty text."""
    if found.ci95 is None or found.ci95[0] <= 0 <= found.ci95[1]:
        return ""
    return "good" if found.mean > 0 else "bad"


def _interval(found: Estimate) -> str:
    return "" if found.ci95 is None else f"{found.ci95[0]:.3g} to {found.ci95[1]:.3g}"
