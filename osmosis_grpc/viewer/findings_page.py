"""The page of findings: failures, slow tools, drifted tokens, groups without variance, and cut replies, with links."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.viewer.filters import filter_values, options_in
from osmosis_grpc.viewer.findings import Findings, findings
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

    def values(options: ListOptions, found: Found) -> dict[str, Any]:
        shown = {"found": found.findings, "listed": found.listed, "read": found.read}
        return {**shown, **filter_values(options, MOST_ROWS)}

    pages.follow(
        routes,
        "findings",
        asked=lambda request: options_in(request, MOST_ROWS),
        read=Shared(read).get,
        values=values,
        key=lambda found: (found.listed.rows, len(found.findings.stalled)),
        ended=lambda found: found.listed.stopped,
        calm=True,
    )
    return routes
