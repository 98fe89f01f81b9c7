"""The page of the throughput: rates over time as charts and as a table, latencies, and the load of a server."""

from dataclasses import asdict, dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from osmosis_grpc.protocol.types.rollout_info import Capacity
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.server_source import ServerSource
from osmosis_grpc.viewer.filters import filter_values, options_in
from osmosis_grpc.viewer.metrics import Numbers
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Shared
from osmosis_grpc.viewer.throughput import Throughput, throughput

TIMED = {True: 200, False: 20}
"""The calls of this many of the newest ended rollouts are read: of a folder, of a server."""


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    values: Throughput
    capacity: Capacity | None
    now: float
    stopped: bool
    cut: bool
    numbers: Numbers | None
    problem: str


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads
    source = reads.source

    async def read(options: ListOptions) -> Found:
        listed = await reads.newest(options)
        rows = listed.rows
        settled = [info for info in rows if info.end_time is not None and not info.undelivered]
        calls = await reads.calls(settled[: TIMED[reads.is_folder]])
        server = source if isinstance(source, ServerSource) else None
        capacity = (await reads.run(lambda _: server.server_info())).capacity if server is not None else None
        values = await reads.aside(lambda: throughput(rows, calls, listed.now))
        numbers, problem = await pages.numbers()
        return Found(values, capacity, listed.now, listed.stopped, listed.cut, numbers, problem)

    shared = Shared(read)

    def values(options: ListOptions, found: Found) -> dict[str, Any]:
        shown = {"found": found, "values": found.values, "capacity": found.capacity, "numbers": found.numbers}
        return {**shown, **filter_values(options, 0)}

    @routes.get("/throughput.json")
    async def data(request: Request) -> Response:
        found = await shared.get(options_in(request, 0))
        capacity = None if found.capacity is None else asdict(found.capacity)
        numbers = None if found.numbers is None else asdict(found.numbers)
        return JSONResponse({"now": found.now, "capacity": capacity, "metrics": numbers, **asdict(found.values)})

    pages.follow(
        routes,
        "throughput",
        asked=lambda request: options_in(request, 0),
        read=shared.get,
        values=values,
        key=lambda found: (found.now, found.values.rollouts, found.values.ended),
        ended=lambda found: found.stopped,
        calm=True,
    )
    return routes
