"""The page of a group: its rollouts side by side, with rewards, times on one axis, and the first turn that differs.

The page of a batch has the same lanes for any rollouts that filters select, for example those of a step.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request

from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.source_port import NoRollout
from osmosis_grpc.viewer.groups import MOST_CELLS, MOST_LANES, Comparison, read_lanes
from osmosis_grpc.viewer.pages import Pages, filter_values, options_in
from osmosis_grpc.viewer.reads import MOST_ROWS, Recent

COMPARISONS = 4
"""The most comparisons kept in memory."""


class _Group(NamedTuple):
    """A group, and the first of its turns that the page shows."""

    id: str
    first: int

    @classmethod
    def of(cls, request: Request) -> "_Group":
        first = request.query_params.get("first", "")
        return cls(request.query_params.get("id", ""), int(first) if first.isdecimal() else 0)


def router(pages: Pages) -> APIRouter:
    """Return the routes of both pages."""
    routes = APIRouter()
    recent: Recent[Comparison] = Recent(COMPARISONS)

    async def compare(options: ListOptions, *, by_time: bool) -> Comparison:
        """Return the rollouts that match, side by side. Read only those that have changed."""
        listed = await pages.reads.listed(options)
        before = recent.get(options, lambda it: math.inf)
        known = before.lanes if before is not None else ()
        lanes = await pages.reads.run(lambda source: read_lanes(source, listed.rows, known, by_time=by_time))
        found = Comparison(tuple(lanes), listed.now, listed.stopped, len(listed.rows) - len(lanes))
        recent.put(options, found)
        return found

    async def read_group(group: _Group) -> Comparison:
        found = await compare(ListOptions(group=group.id, limit=MOST_ROWS), by_time=False)
        if not found.lanes:
            raise NoRollout(f"there is no rollout of group {group.id}")
        return found

    async def read_batch(options: ListOptions) -> Comparison:
        return await compare(replace(options, limit=min(options.limit or MOST_LANES, MOST_ROWS)), by_time=True)

    def of_group(group: _Group, found: Comparison) -> dict[str, Any]:
        lines = found.lines()
        return {
            "group": group.id,
            "found": found,
            "lines": lines,
            "first": group.first,
            "window": max(8, MOST_CELLS // len(found.lanes)),
            "differing": next((at for at, line in enumerate(lines) if line.differs), None),
            "batch": False,
        }

    def of_batch(options: ListOptions, found: Comparison) -> dict[str, Any]:
        return {
            "found": found,
            **filter_values(options, 0),
            "consumed": sum(lane.fate.consumed is not None and not lane.fate.dropped for lane in found.lanes),
            "dropped": sum(bool(lane.fate.dropped) for lane in found.lanes),
            "batch": True,
        }

    pages.follow(
        routes,
        "group",
        asked=_Group.of,
        read=read_group,
        values=of_group,
        key=lambda found: (found.lanes, found.stopped),
        ended=lambda found: not found.open,
    )
    pages.follow(
        routes,
        "batch",
        asked=lambda request: options_in(request, 0),
        read=read_batch,
        values=of_batch,
        key=lambda found: (found.lanes, found.stopped),
        ended=lambda found: found.stopped,
    )
    return routes
