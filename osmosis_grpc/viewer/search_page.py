"""The page of a search in the messages of all rollouts. Each hit links to its turn."""

from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of
from osmosis_grpc.viewer.filters import options_in
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Recent
from osmosis_grpc.viewer.rollouts import MOST_TEXT
from osmosis_grpc.viewer.text_search import MOST_HITS, Hits, search

READ = {True: 5_000, False: 50}
"""A search reads at most this many of the newest rollouts: of a folder, of a server."""
LASTS = 10.0


@dataclass(frozen=True, slots=True)
class Searched:
    """A result with what it covers."""

    hits: Hits
    left_out: bool


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads
    recent: Recent[Searched] = Recent(4)

    async def read(text: str, options: ListOptions) -> Searched:
        known = recent.get((text, options), lambda it: LASTS)
        if known is not None:
            return known
        listed = await reads.newest(replace(options, limit=READ[reads.is_folder]))
        hits = await reads.run(lambda source: search(source, listed.rows, text))
        found = Searched(hits, listed.cut or hits.searched < len(listed.rows))
        recent.put((text, options), found)
        return found

    @routes.get("/search")
    async def show(request: Request) -> Response:
        text = request.query_params.get("text", "").strip()
        options = options_in(request, 0, ("text",))
        if len(text) > MOST_TEXT:
            raise FilterError("text", f"it has {len(text)} characters; search for at most {MOST_TEXT}")
        found = await read(text, options) if text else None
        filters = [pair for pair in pairs_of(options) if pair[0] != "limit"]
        return pages.page("search.html", text=text, found=found, most=MOST_HITS, filters=filters, at="search")

    return routes
