"""A legacy HTTP agent server, driven by hand over sockets: it says what a test tells it to, and remembers."""

import asyncio
import json
from typing import Any

import aiohttp
from aiohttp import web

QUESTION = [{"role": "user", "content": "What is 2 * 3?"}]
REPLY = {"role": "assistant", "content": "6"}
TOOL = {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties": {}}}}
CHAT, COMPLETED = "/v1/chat/completions", "/v1/rollout/completed"


class OldAgentServer:
    """Used as `async with OldAgentServer() as old`. Answers Inits, and calls back when a test says so."""

    def __init__(self) -> None:
        self.inits: list[dict[str, Any]] = []
        """Those that began an agent, one per idempotency key."""
        self.posts = 0
        self.keys: list[str | None] = []
        self.init_answers: list[Any] = []
        """Callables from the request to a response, one per post; after the last, 202."""
        self.health: Any = {"status": "healthy", "agent_loop": "old", "active_rollouts": 0, "completed_rollouts": 0}
        self.script: Any = None
        """A coroutine function of (server, init): what the old agent does at once."""
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "OldAgentServer":
        app = web.Application(client_max_size=2**28)
        app.add_routes([web.post("/v1/rollout/init", self._init), web.get("/health", self._health)])
        self.runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.session.close()
        await self.runner.cleanup()
        assert not [r for r in results if isinstance(r, Exception)]

    def of(self, rollout_id: str) -> dict[str, Any]:
        """The newest Init of a rollout."""
        return next(init for init in reversed(self.inits) if init["rollout_id"] == rollout_id)

    async def chat(self, rollout_id: str, messages: Any = QUESTION, **more: Any) -> tuple[int, Any]:
        """Ask for a reply: status and body."""
        return await self.chat_of(self.of(rollout_id), messages, **more)

    async def chat_of(self, init: dict[str, Any], messages: Any = QUESTION, **more: Any) -> tuple[int, Any]:
        """The same, as the agent of one Init."""
        body = {"messages": messages, "rollout_id": init["rollout_id"]} | more
        status, answered, _ = await self.post(init, CHAT, json=body)
        return status, answered

    async def complete(self, rollout_id: str, status: str = "COMPLETED", **more: Any) -> int:
        """Report a result: the acknowledgement's status."""
        return await self.complete_of(self.of(rollout_id), status, **more)

    async def complete_of(self, init: dict[str, Any], status: str = "COMPLETED", **more: Any) -> int:
        """The same, as the agent of one Init."""
        body = {"rollout_id": init["rollout_id"], "status": status} | more
        return (await self.post(init, COMPLETED, json=body))[0]

    async def post(
        self, init: dict[str, Any], path: str, *, key: str | None = None, headers: Any = (), **content: Any
    ) -> tuple[int, Any, Any]:
        """Status, body and headers of a call back."""
        shown = init["api_key"] if key is None else key
        sent = dict(headers) | ({"Authorization": f"Bearer {shown}"} if shown else {})
        async with self.session.post(init["server_url"] + path, headers=sent, **content) as got:
            answered = await got.text()
            return got.status, json.loads(answered) if got.content_type == "application/json" else answered, got.headers

    async def _health(self, request: web.Request) -> web.Response:
        return await self.health(request) if callable(self.health) else web.json_response(self.health)

    async def _init(self, request: web.Request) -> Any:
        self.posts += 1
        self.keys.append(request.headers.get("Authorization"))
        body = await request.json()
        if self.init_answers:
            return await self.init_answers.pop(0)(request)
        self.begin(body)
        return web.json_response({"rollout_id": body["rollout_id"], "tools": [TOOL]}, status=202)

    def begin(self, body: dict[str, Any]) -> None:
        """Start the agent, once per key, as the contract has it for a duplicate Init."""
        if any(init["idempotency_key"] == body["idempotency_key"] for init in self.inits):
            return
        self.inits.append(body)
        if self.script is not None:
            self.tasks.add(asyncio.create_task(self.script(self, body)))

    def answers(self, after: Any, tools: Any = (TOOL,)) -> Any:
        """For init_answers: begin the agent, await `after()`, answer."""

        async def respond(request: web.Request) -> web.Response:
            body = await request.json()
            self.begin(body)
            await after()
            return web.json_response({"rollout_id": body["rollout_id"], "tools": list(tools)}, status=202)

        return respond


def says(status: int, body: Any = b"", **headers: str) -> Any:
    """For init_answers and health: one answer."""

    async def respond(request: web.Request) -> web.Response:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=raw, headers=more)

    return respond


async def never() -> None:
    """Longer than any test waits."""
    await asyncio.sleep(30)


async def plays(old: OldAgentServer, init: dict[str, Any]) -> None:
    """An old agent: one chat, one outcome."""
    status, body = await old.chat_of(init, init["messages"], temperature=1.0, top_p=1.0, max_tokens=512)
    if status == 200:
        messages = [*init["messages"], body["choices"][0]["message"]]
        status = await old.complete_of(init, final_messages=messages, finish_reason="stop", reward=1.0)
    else:
        status = await old.complete_of(init, "ERROR", error_message=f"chat: {status}")
    assert status == 200
