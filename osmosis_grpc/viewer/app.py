"""Creates the application of the viewer (viewer_app), and serves it (serve_viewer)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.channel_options import default_connections
from osmosis_grpc.network.http.connections import OneBody
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import ServerTls
from osmosis_grpc.records.reading.list_filter import FilterError
from osmosis_grpc.records.reading.source_port import NoRollout, Source, SourceError
from osmosis_grpc.viewer import (
    annotations,
    curves,
    findings,
    group_page,
    rollouts,
    row_page,
    runs,
    search,
    server_page,
    task_page,
    throughput,
    token_page,
    trajectory,
)
from osmosis_grpc.viewer.guard import ViewGuard
from osmosis_grpc.viewer.live import SHARE, Feeds
from osmosis_grpc.viewer.metrics import Metrics
from osmosis_grpc.viewer.pages import Pages, Texts
from osmosis_grpc.viewer.reads import Reads

STATIC = Path(__file__).parent / "static"
PAGES = (
    rollouts,
    findings,
    trajectory,
    server_page,
    group_page,
    task_page,
    curves,
    annotations,
    token_page,
    throughput,
    search,
    runs,
    row_page,
)
"""The modules of the pages. Each has a function router(pages)."""


def viewer_app(
    source: Source,
    *,
    host: str = "127.0.0.1",
    token: str | Tokens = "",
    words: str = "",
    texts: Texts | None = None,
    metrics: Metrics | None = None,
    share: float = SHARE,
    whole: bool = False,
) -> FastAPI:
    """Return the application for an open source.

    Args:
        source: The source of the rollouts.
        host: The host that the application will be bound to.
        token: The token, or tokens, of which callers must send one; by default, none.
        words: The options with which other commands read the same source, for commands to copy.
        texts: Decodes tokens. Without it, the page of tokens shows ids.
        metrics: The metrics of the server.
        share: The largest share of one processor's time that live pages may use.
        whole: Whether pages are complete at once, and load nothing later.
    """
    names = {host} if is_loopback(host) else {host, socket.gethostname()}
    tokens = token if isinstance(token, Tokens) else Tokens(token or ())
    guards = [Middleware(OneBody), Middleware(ViewGuard, names=names, tokens=tokens)]
    app = FastAPI(title="osmosis-grpc view", middleware=guards, docs_url=None, redoc_url=None, openapi_url=None)
    stopping = asyncio.Event()
    pages = Pages(Reads(source), words, Feeds(share, stopping), texts, metrics, whole=whole)
    app.state.stopping = stopping
    for page in PAGES:
        app.include_router(page.router(pages))
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.exception_handler(SourceError)
    async def unreadable(request: Request, error: SourceError) -> Response:
        return pages.problem(request, str(error), 404 if isinstance(error, NoRollout) else 503)

    @app.exception_handler(FilterError)
    async def wrong(request: Request, error: FilterError) -> Response:
        return pages.problem(request, f"{error.option}: {error}", 400)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return pages.problem(request, str(error.detail), error.status_code)

    return app


@asynccontextmanager
async def serve_viewer(
    source: Source,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | Tokens = "",
    words: str = "",
    texts: Texts | None = None,
    metrics: Metrics | None = None,
    share: float = SHARE,
    tls: ServerTls | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve the viewer of an open source. At the end, open streams end at once.

    With `tls`, serve over TLS. See viewer_app for the other parameters. Raises OSError if the port is taken, and
    ValueError if other machines can reach the host and there is no `token`.
    """
    if not is_loopback(host) and not token:
        raise ValueError(f"--host {host} can be reached from other machines, so it needs a token: --token-file FILE")
    app = viewer_app(source, host=host, token=token, words=words, texts=texts, metrics=metrics, share=share)
    async with HttpServer(app, host=host, port=port, tls=tls, connections=default_connections()) as http:
        try:
            yield http
        finally:
            app.state.stopping.set()
