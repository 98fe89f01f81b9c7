"""The page of findings: failures, slow tools, drifted tokens, groups without variance, and cut replies, with links."""

from dataclasses import replace
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_gateway.viewer.findings import findings
from osmosis_gateway.viewer.pages import Pages
from osmosis_gateway.viewer.reads import MOST_ROWS
from osmosis_grpc.reading.list_filter import options_of, pairs_of

READ = {True: 200, False: 40}
"""The calls of this many of the newest ended rollouts are read: of a folder, of a server."""


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    @routes.get("/findings")
    async def show(request: Request) -> Response:
        given = options_of(request.query_params.multi_items())
        options = given if "limit" in request.query_params else replace(given, limit=MOST_ROWS)
        listed = await pages.reads.listed(options)
        ended = [info for info in listed.rows if info.end_time is not None]
        calls = await pages.reads.calls(ended[: READ[pages.reads.is_folder]])
        filters = [pair for pair in pairs_of(options) if pair[0] != "limit"]
        return pages.page(
            "findings.html",
            found=findings(listed.rows, calls, listed.now),
            listed=listed,
            read=len(calls),
            filters=filters,
            query=urlencode(filters),
            at="findings",
        )

    return routes
