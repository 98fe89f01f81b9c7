"""The page of a group: its rollouts side by side, with rewards, times on one axis, and the first turn that differs.

The page of a batch has the same lanes for any rollouts that filters select, for example those of a step.
"""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.viewer.filters import filter_values, options_in
from osmosis_grpc.viewer.groups import MOST_CELLS, MOST_LANES, Comparison, read_lanes
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import MOST_ROWS, Recent

GROUPS = 4
"""The comparisons of at most this many groups are in memory."""


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    recent: Recent[Comparison] = Recent(GROUPS)

    async def read(group: str) -> Comparison:
        """Return the group. Only its rollouts that have changed are read."""
        listed = await pages.reads.listed(ListOptions(group=group, limit=MOST_ROWS))
        known = recent.get(group, lambda it: float("inf"))
        before = known.lanes if known is not None else ()
        lanes = await pages.reads.run(lambda source: read_lanes(source, listed.rows, before))
        found = Comparison(tuple(lanes), listed.now, listed.stopped, len(listed.rows) - len(lanes))
        recent.put(group, found)
        return found

    def values(group: str, found: Comparison, first: int) -> dict[str, Any]:
        lines = found.lines()
        window = max(8, MOST_CELLS // max(1, len(found.lanes)))
        return {
            "group": group,
            "found": found,
            "lines": lines,
            "first": first,
            "window": window,
            "differing": next((at for at, line in enumerate(lines) if line.differs), None),
            "batch": False,
            "at": "",
        }

    async def read_batch(options: ListOptions) -> Comparison:
        """Return the rollouts that match, the oldest first. Reads a rollout again only if it has changed."""
        listed = await pages.reads.listed(replace(options, limit=min(options.limit or MOST_LANES, MOST_ROWS)))
        known = recent.get(options, lambda it: float("inf"))
        before = known.lanes if known is not None else ()
        rows = sorted(listed.rows, key=lambda info: info.accept_time)
        lanes = await pages.reads.run(lambda source: read_lanes(source, rows, before, by_time=True))
        found = Comparison(tuple(lanes), listed.now, listed.stopped, len(rows) - len(lanes))
        recent.put(options, found)
        return found

    def of_batch(options: ListOptions, found: Comparison) -> dict[str, Any]:
        return {
            "found": found,
            **filter_values(options, 0),
            "consumed": sum(lane.consumed is not None and not lane.dropped for lane in found.lanes),
            "dropped": sum(bool(lane.dropped) for lane in found.lanes),
            "batch": True,
            "at": "",
        }

    @routes.get("/batch")
    async def show_batch(request: Request) -> Response:
        options = options_in(request, 0)
        return pages.page("batch.html", **of_batch(options, await read_batch(options)))

    @routes.get("/batch/stream")
    async def follow_batch(request: Request) -> Response:
        options = options_in(request, 0)
        feed = Feed(
            lambda: read_batch(options),
            lambda found: (found.lanes, found.stopped),
            lambda found: [("batch", pages.text("batch_part.html", **of_batch(options, found)))],
            lambda found: found.stopped,
        )
        return pages.feeds.stream(("batch", options), feed)

    @routes.get("/group")
    async def show(id: str, first: int = 0) -> Response:  # noqa: A002
        found = await read(id)
        if not found.lanes:
            raise HTTPException(404, f"there is no rollout of group {id}")
        return pages.page("group.html", **values(id, found, max(0, first)))

    @routes.get("/group/stream")
    async def follow(id: str, first: int = 0) -> Response:  # noqa: A002
        feed = Feed(
            lambda: read(id),
            lambda found: (found.lanes, found.stopped),
            lambda found: (
                [("group", pages.text("group_part.html", **values(id, found, max(0, first))))] if found.lanes else []
            ),
            lambda found: not found.open,
        )
        return pages.feeds.stream(("group", id, max(0, first)), feed)

    return routes
