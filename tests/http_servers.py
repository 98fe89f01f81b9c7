"""HTTP servers of tests on real sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def posting(handlers: Mapping[str, Handler]) -> AsyncIterator[web.AppRunner]:
    """Serve POST requests by their paths on a free port. A request whose client has left is cancelled."""
    app = web.Application()
    app.add_routes([web.post(path, handler) for path, handler in handlers.items()])
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner
    finally:
        await runner.cleanup()


def url_of(runner: web.AppRunner) -> str:
    """Return the address of a server."""
    return f"http://127.0.0.1:{runner.addresses[0][1]}"
