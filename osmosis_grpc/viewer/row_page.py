"""The page of one dataset row in the runs that are compared: its rollouts side by side, turn by turn."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.records.evaluate import RunError, RunFolder
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.viewer.groups import Comparison, Lane, read_lanes
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.runs import LEAST, MOST, RunSummary, open_runs, rollouts_of, summary_of
from osmosis_grpc.viewer.task_page import answer_of
from osmosis_grpc.viewer.tasks import Task, task_of


@dataclass(frozen=True, slots=True)
class RowBeside:
    """The rollouts of a row, one from each run that has the row."""

    runs: tuple[RunSummary, ...]
    """The runs that have the row."""
    compared: Comparison
    task: Task


def read_row(folder: Path, names: Sequence[str], row: int) -> RowBeside:
    """Return the rollouts of a row in runs beside `folder`. Raises RunError if a run or the row does not exist."""
    opened = open_runs(folder, names)
    having = [(run, rollouts_of(run)[row]) for run in opened if row in rollouts_of(run)]
    if not having:
        raise RunError(f"row: no run has row {row}")
    lanes, task = asyncio.run(_read([(run, rollout) for run, rollout in having]))  # this runs on another thread
    runs = tuple(summary_of(run) for run, _ in having)
    return RowBeside(runs, Comparison(tuple(lanes), time.time(), True), task)


async def _read(having: Sequence[tuple[RunFolder, str]]) -> tuple[list[Lane], Task]:
    lanes: list[Lane] = []
    for run, rollout in having:
        source = FolderSource(run.path)
        info: RolloutInfo = await source.get(rollout)
        lanes += await read_lanes(source, [info], ())
    request, _ = await FolderSource(having[0][0].path).request(having[0][1], lanes[0].info.attempt)
    return lanes, task_of(request)


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    source = pages.reads.source
    folder = source.folder if isinstance(source, FolderSource) else Path()

    @routes.get("/compare/row")
    async def show(request: Request, row: int) -> Response:
        names = request.query_params.getlist("run")
        try:
            found = await anyio.to_thread.run_sync(read_row, folder, names, row)
        except (RunError, SourceError, OSError) as error:
            raise HTTPException(400, f"{error}; compare {LEAST} to {MOST} runs from the page Runs") from None
        lines = found.compared.lines()
        return pages.page(
            "row.html",
            found=found,
            lines=lines,
            row=row,
            names=names,
            here=folder.absolute().name,
            answer_of=answer_of,
            at="runs",
        )

    return routes
