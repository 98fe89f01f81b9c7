"""Computes the throughput and the latencies of rollouts: rates over time, and percentiles by agent and by tool."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.protocol.types.rollout_info import Capacity
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.server_source import ServerSource
from osmosis_grpc.viewer.calls import Calls, Key
from osmosis_grpc.viewer.metrics import Numbers
from osmosis_grpc.viewer.pages import Pages, filter_values, options_in
from osmosis_grpc.viewer.reads import Shared

MOST_POINTS = 120
"""The most points of a series, however long its time is."""
LEAST = 0.1
"""The least time between two points, in seconds."""
STEPS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400),
)
"""Round times in seconds. Longer ones are a whole number of days."""
TIMED = {True: 200, False: 20}
"""How many of the newest ended rollouts have their calls read, for a folder (True) and for a server (False)."""


def round_step(seconds: float, most: int) -> float:
    """Return the shortest round time, in seconds, that covers `seconds` in at most `most` steps."""
    days = STEPS[-1] * (1 + seconds // (STEPS[-1] * most))
    return next((step for step in STEPS if seconds <= step * most), days)


@dataclass(frozen=True, slots=True)
class Spread:
    """The durations of things of one kind, in seconds."""

    kind: str
    name: str
    count: int
    total: float
    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, kind: str, name: str, seconds: Iterable[float]) -> "Spread":
        """Return the spread of one or more times. A percentile is one of these times, by nearest rank."""
        times = sorted(seconds)
        p50, p95, p99 = (times[max(0, -(-len(times) * part // 100) - 1)] for part in (50, 95, 99))
        return cls(kind, name, len(times), sum(times), p50, p95, p99, times[-1])


@dataclass(frozen=True, slots=True)
class Point:
    """What happened in the step that ends at `time`. `tokens` is the number of response tokens per second."""

    time: float
    per_minute: float
    tokens: float
    running: float
    queued: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput of some rollouts."""

    rollouts: int
    ended: int
    step: float
    points: tuple[Point, ...]
    spreads: tuple[Spread, ...]
    """The spreads of the queue, the model and whole rollouts by agent, followed by those of tools."""
    timed: int
    retries: int


def throughput(rows: Sequence[RolloutInfo], calls: Mapping[Key, Calls], now: float) -> Throughput:
    """Return the throughput of rollouts until `now`. `calls` has the calls of some of them, by id and attempt."""
    step, points = _points(rows, now)
    spreads = []
    for agent in sorted({info.agent_loop for info in rows}):
        own = [info for info in rows if info.agent_loop == agent]
        read = [calls[key] for info in own if (key := (info.rollout_id, info.attempt)) in calls]
        kinds = {
            "queue": [info.start_time - info.accept_time for info in own if info.start_time is not None],
            "model": [seconds for each in read for seconds in each.model],
            "rollout": [info.end_time - info.accept_time for info in own if info.end_time is not None],
        }
        spreads += [Spread.of(kind, agent, times) for kind, times in kinds.items() if times]
    tools: dict[str, list[float]] = {}
    for each in calls.values():
        for tool in each.tools:
            tools.setdefault(tool.name, []).append(tool.seconds)
    by_time = sorted(tools.items(), key=lambda item: -sum(item[1]))
    return Throughput(
        rollouts=len(rows),
        ended=sum(info.end_time is not None for info in rows),
        step=step,
        points=points,
        spreads=(*spreads, *(Spread.of("tool", name, times) for name, times in by_time)),
        timed=len(calls),
        retries=sum(each.retries for each in calls.values()),
    )


def _points(rows: Sequence[RolloutInfo], now: float) -> tuple[float, tuple[Point, ...]]:
    """Return the seconds of a step, and the points from the first acceptance until `now`."""
    if not rows:
        return LEAST, ()
    time = max(LEAST, now - min(info.accept_time for info in rows))
    step = max(LEAST, round_step(time, MOST_POINTS))
    steps = min(MOST_POINTS, int(time // step) + 1)
    edges = step * np.arange(-steps, 1)  # seconds before now
    accept = np.array([info.accept_time - now for info in rows])
    last = np.array([0.0 if info.end_time is None else info.end_time - now for info in rows])
    start = np.array(
        [end if info.start_time is None else info.start_time - now for info, end in zip(rows, last, strict=True)]
    )
    ended = np.array([info.end_time is not None for info in rows])
    ends = np.histogram(last[ended], edges)[0] * (60 / step)
    tokens = np.histogram(last, edges, weights=ended * [info.response_tokens for info in rows])[0] / step
    columns = [now + edges[1:], ends, tokens, _means(edges, start, last), _means(edges, accept, start)]
    return step, tuple(itertools.starmap(Point, np.stack(columns, axis=1).tolist()))


def _means(edges: Any, start: Any, end: Any) -> Any:
    before = [np.clip(edge, start, np.maximum(start, end)).sum() for edge in edges]
    return np.diff(before) / np.diff(edges)


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
