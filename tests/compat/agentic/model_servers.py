"""LLM functions with the mock model servers that they ask."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

KEY = "sk-canary-4711"


@dataclass
class Asked:
    """The address of a server, and the requests that it has got."""

    url: str = ""
    bodies: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    times: list = field(default_factory=list)


@asynccontextmanager
async def serving(*answers):
    """A model server on a real socket. It gives the answers in turn, and the last one again and again.

    An answer is a body, a status, a (status, headers) or an async function of the request. The server accepts OpenAI's
    and Anthropic's paths.
    """
    asked, left = Asked(), list(answers)

    async def handle(request):
        asked.times.append(asyncio.get_running_loop().time())
        asked.bodies.append(await request.json())
        asked.headers.append(request.headers)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, dict):
            return web.json_response(answer)
        if callable(answer):
            return await answer(request)
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        said = {"error": {"message": f"refused, key {KEY}"}}
        return web.json_response(said, status=status, headers=headers)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    app.router.add_post("/v1/messages", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    asked.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield asked
    finally:
        await runner.cleanup()
