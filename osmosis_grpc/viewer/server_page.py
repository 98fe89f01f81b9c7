"""The page of the source: a running server with its limits, or a state folder. It can also drain a server."""

import time
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.records.reading.server_source import ServerSource
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    source = pages.reads.source

    async def measured() -> dict[str, Any]:
        """Return the metrics, and the attached trainers, which are None if they are unknown."""
        numbers, problem = await pages.numbers()
        known = pages.metrics.trainers if pages.metrics is not None else None
        trainers = None if known is None else sorted(known(), key=lambda trainer: trainer.since)
        return {"numbers": numbers, "problem": problem, "trainers": trainers, "now": time.time()}

    async def of_server(server: ServerSource) -> dict[str, Any]:
        info = await pages.reads.run(lambda _: server.server_info())
        capacity, limits = plain(info.capacity), plain(info.limits)
        return {**await measured(), "info": info, "capacity": capacity, "limits": limits, "at": "server"}

    @routes.get("/server")
    async def show(request: Request) -> Response:
        if isinstance(source, ServerSource):
            return pages.page("server.html", **await of_server(source), folder=None)
        if not isinstance(source, FolderSource):
            raise SourceError(f"{source.where} has no page")
        folder = await pages.reads.run(lambda _: source.folder_info())
        return pages.page("server.html", **await measured(), info=None, folder=folder, at="server")

    @routes.get("/server/stream")
    async def follow(request: Request) -> Response:
        if not isinstance(source, ServerSource):
            raise HTTPException(404, f"{source.where} is not a server")
        feed = Feed(
            lambda: of_server(source),
            lambda found: (repr(found["capacity"]), found["numbers"]),
            lambda found: [("load", pages.text("server_load.html", **found))],
        )
        return pages.feeds.stream("server", feed)

    @routes.post("/server/drain")
    async def drain(request: Request) -> Response:
        if not isinstance(source, ServerSource):
            raise SourceError(f"{source.where} is a folder; only a running server can be drained")
        await source.drain()
        return RedirectResponse("/server", 303)

    return routes
