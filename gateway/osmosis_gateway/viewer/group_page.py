"""The page of a group: its rollouts side by side, with rewards, times on one axis, and the first turn that differs."""

from typing import Any

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

from osmosis_gateway.viewer.groups import MOST_CELLS, Comparison, read_lanes
from osmosis_gateway.viewer.live import stream
from osmosis_gateway.viewer.pages import Pages
from osmosis_gateway.viewer.reads import MOST_ROWS, Recent
from osmosis_grpc.reading.list_filter import ListOptions

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
            "at": "",
        }

    @routes.get("/group")
    async def show(id: str, first: int = 0) -> Response:  # noqa: A002
        found = await read(id)
        if not found.lanes:
            raise HTTPException(404, f"there is no rollout of group {id}")
        return pages.page("group.html", **values(id, found, max(0, first)))

    @routes.get("/group/stream")
    async def follow(id: str, first: int = 0) -> Response:  # noqa: A002
        return stream(
            lambda: read(id),
            lambda found: (found.lanes, found.stopped),
            lambda found: (
                [("group", pages.text("group_part.html", **values(id, found, max(0, first))))] if found.lanes else []
            ),
            pages.stopping,
            ended=lambda found: not found.open,
        )

    return routes
