"""The page of runs: the runs of test and eval beside the shown one, and two to four of them compared."""

from pathlib import Path

import anyio
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from osmosis_grpc.records.evaluate import RunError
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.trainer.evaluate import Estimate
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.runs import LEAST, MOST, MOST_ROWS, compare_runs, runs_beside


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
            raise HTTPException(404, "the viewer shows no run of test or eval: osmosis-grpc view --run last")
        return pages.page("runs.html", runs=runs, here=folder.absolute().name, chosen=chosen, most=MOST, at="runs")

    @routes.get("/compare")
    async def compare(request: Request, score: str = "") -> Response:
        names = request.query_params.getlist("run")
        try:
            found = await anyio.to_thread.run_sync(compare_runs, folder, names, score)
        except (RunError, OSError) as error:
            raise HTTPException(400, f"{error}; a comparison has {LEAST} to {MOST} runs of the page Runs") from None
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
    """Return good or bad for a difference whose interval does not have 0 in it, else an empty text."""
    if found.ci95 is None or found.ci95[0] <= 0 <= found.ci95[1]:
        return ""
    return "good" if found.mean > 0 else "bad"


def _interval(found: Estimate) -> str:
    """Return the interval of 95 %; empty without one."""
    return "" if found.ci95 is None else f"{found.ci95[0]:.3g} to {found.ci95[1]:.3g}"
