"""The page of the throughput: rates over time as charts and as a table, latencies, and the load of a server."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.protocol.types.rollout_info import Capacity
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.server_source import ServerSource
from osmosis_grpc.viewer.filters import filter_values, options_in
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.metrics import Numbers
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import MOST_ROWS, SEARCHED, Shared
from osmosis_grpc.viewer.throughput import Throughput, throughput

TIMED = {True: 200, False: 20}
"""The calls of this many of the newest ended rollouts are read: of a folder, of a server."""


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    values: Throughput
    capacity: Capacity | None
    """The load of the server; None for a folder."""
    now: float
    stopped: bool
    cut: bool
    """Whether older rollouts were left out."""
    numbers: Numbers | None
    """The metrics of the server; None without any."""
    problem: str
    """Why the metrics cannot be read."""


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads
    source = reads.source

    async def read(options: ListOptions) -> Found:
        rows: list[RolloutInfo] = []
        token, most = "", options.limit or SEARCHED[reads.is_folder]
        while True:
            listed = await reads.listed(replace(options, limit=min(MOST_ROWS, most - len(rows))), token=token)
            rows += listed.rows
            token = listed.more
            if not token or len(rows) >= most:
                break
        settled = [info for info in rows if info.end_time is not None and not info.undelivered]
        calls = await reads.calls(settled[: TIMED[reads.is_folder]])
        server = source if isinstance(source, ServerSource) else None
        capacity = (await reads.run(lambda _: server.server_info())).capacity if server is not None else None
        values = await reads.aside(lambda: throughput(rows, calls, listed.now))
        numbers, problem = await pages.numbers()
        return Found(values, capacity, listed.now, listed.stopped, bool(token), numbers, problem)

    shared = Shared(read)

    def shown(options: ListOptions, found: Found) -> dict[str, Any]:
        return {
            "found": found,
            "values": found.values,
            "capacity": found.capacity,
            "numbers": found.numbers,
            **filter_values(options, 0),
            "at": "throughput",
        }

    @routes.get("/throughput")
    async def show(request: Request) -> Response:
        options = options_in(request, 0)
        return pages.page("throughput.html", **shown(options, await shared.get(options)))

    @routes.get("/throughput.json")
    async def data(request: Request) -> Response:
        found = await shared.get(options_in(request, 0))
        capacity = None if found.capacity is None else asdict(found.capacity)
        numbers = None if found.numbers is None else asdict(found.numbers)
        return JSONResponse({"now": found.now, "capacity": capacity, "metrics": numbers, **asdict(found.values)})

    @routes.get("/throughput/stream")
    async def follow(request: Request) -> Response:
        options = options_in(request, 0)
        feed = Feed(
            lambda: shared.get(options),
            lambda found: (found.now, found.values.rollouts, found.values.ended),
            lambda found: [("throughput", pages.text("throughput_part.html", **shown(options, found)))],
            lambda found: found.stopped,
            calm=True,
        )
        return pages.feeds.stream(("throughput", options), feed)

    return routes
