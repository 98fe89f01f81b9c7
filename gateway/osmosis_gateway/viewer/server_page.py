"""The page of the source: a running server with its limits, or a state folder. A server can be drained there."""

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from osmosis_gateway.viewer.pages import Pages
from osmosis_grpc.reading.folder_source import FolderSource
from osmosis_grpc.reading.record_values import plain
from osmosis_grpc.reading.server_source import ServerSource
from osmosis_grpc.reading.source_port import SourceError


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    source = pages.reads.source

    @routes.get("/server")
    async def show(request: Request) -> Response:
        if isinstance(source, ServerSource):
            info = await source.server_info()
            return pages.page(
                "server.html",
                info=info,
                capacity=plain(info.capacity),
                limits=plain(info.limits),
                folder=None,
                at="server",
            )
        if not isinstance(source, FolderSource):
            raise SourceError(f"{source.where} has no page")
        folder = await pages.reads.run(lambda _: source.folder_info())
        return pages.page("server.html", info=None, folder=folder, at="server")

    @routes.post("/server/drain")
    async def drain(request: Request) -> Response:
        if not isinstance(source, ServerSource):
            raise SourceError(f"{source.where} is a folder; only a running server can be drained")
        await source.drain()
        return RedirectResponse("/server", 303)

    return routes
