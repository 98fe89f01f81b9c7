"""The page of findings: failures, slow tools, drifted tokens, groups without variance, and cut replies, with links."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.viewer.filters import filter_values, options_in
from osmosis_grpc.viewer.findings import Findings, findings
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import MOST_ROWS, Listed, Shared

READ = {True: 200, False: 40}
"""The calls of this many of the newest ended rollouts are read: of a folder, of a server."""


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    listed: Listed
    findings: Findings
    read: int
    """The number of rollouts whose calls were read."""


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads

    async def read(options: ListOptions) -> Found:
        listed = await reads.listed(options)
        ended = [info for info in listed.rows if info.end_time is not None]
        calls = await reads.calls(ended[: READ[reads.is_folder]])
        found = await reads.aside(lambda: findings(listed.rows, calls, listed.now))
        return Found(listed, found, len(calls))

    shared = Shared(read)

    def shown(options: ListOptions, found: Found) -> dict[str, Any]:
        return {
            "found": found.findings,
            "listed": found.listed,
            "read": found.read,
            **filter_values(options, MOST_ROWS),
            "at": "findings",
        }

    @routes.get("/findings")
    async def show(request: Request) -> Response:
        options = options_in(request, MOST_ROWS)
        return pages.page("findings.html", **shown(options, await shared.get(options)))

    @routes.get("/findings/stream")
    async def follow(request: Request) -> Response:
        options = options_in(request, MOST_ROWS)
        feed = Feed(
            lambda: shared.get(options),
            lambda found: (found.listed.rows, len(found.findings.stalled)),
            lambda found: [("findings", pages.text("findings_part.html", **shown(options, found)))],
            lambda found: found.listed.stopped,
            calm=True,
        )
        return pages.feeds.stream(("findings", options), feed)

    return routes
