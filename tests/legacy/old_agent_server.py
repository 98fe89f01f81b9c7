"""An agent server of the old kind: HTTP, written from the contract, with the SDK's known habits.

It starts an agent at once, in the background, asks {server_url} for chats, tries a chat again
after 5xx, timeouts and cut connections (three times) but never after a 4xx, and takes nothing
but 200 for an acknowledgement of its outcome. An agent that raises is reported ERROR
without messages, with what the client itself had counted: no tool calls.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from tests.legacy.agent import Agent
from tests.legacy.old_contract import (
    CompletionsRequest,
    InitResponse,
    Message,
    RolloutMetrics,
    RolloutRequest,
    RolloutResponse,
    body,
)

_PAUSE = 0.05


class CallFailed(Exception):
    """What the old client raised: the other side refused, broke, or stayed away."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the old ctx.chat returned."""

    message: Message
    usage: dict[str, int]
    finish_reason: str

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls", [])

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.message.get("tool_calls"))


class OldContext:
    """The old RolloutContext and its client in one."""

    def __init__(self, request: RolloutRequest, post: Callable[..., Awaitable[Any]]) -> None:
        self.request = request
        self._post = post
        self._began = time.monotonic()
        self._tools, self._tool_latency = 0, 0.0
        self._llm = RolloutMetrics()

    async def chat(self, messages: list[Message], **params: Any) -> Reply:
        if isinstance(params.get("stop"), str):
            params["stop"] = [params["stop"]]
        asked = CompletionsRequest(rollout_id=self.request.rollout_id, messages=messages, **params)
        began = time.monotonic()
        answer = await self._post(self.request, "/v1/chat/completions", body(asked), retries=3)
        usage = answer.get("usage", {})
        self._llm.llm_latency_ms += (time.monotonic() - began) * 1000
        self._llm.num_llm_calls += 1
        self._llm.prompt_tokens += usage.get("prompt_tokens", 0)
        self._llm.response_tokens += usage.get("completion_tokens", 0)
        choice = answer["choices"][0]
        return Reply(choice["message"], usage, choice.get("finish_reason", "stop"))

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        self._tools += 1
        self._tool_latency += latency_ms

    def complete(
        self, final_messages: list[Message], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResponse:
        return self._result("COMPLETED", final_messages, finish_reason, self._metrics(), reward=reward)

    def error(self, error_message: str, final_messages: list[Message] | None = None) -> RolloutResponse:
        return self._result("ERROR", final_messages or [], "error", self._metrics(), error_message=error_message)

    def raised(self, error: Exception) -> RolloutResponse:
        """The server's report when the agent raised: the client's counters, which know no tools."""
        return self._result("ERROR", [], "error", self._llm, error_message=str(error))

    def _result(
        self, status: Any, messages: list[Message], finish_reason: str, metrics: RolloutMetrics, **more: Any
    ) -> RolloutResponse:
        return RolloutResponse(
            rollout_id=self.request.rollout_id,
            status=status,
            final_messages=messages,
            finish_reason=finish_reason,
            metrics=metrics,
            **more,
        )

    def _metrics(self) -> RolloutMetrics:
        total = (time.monotonic() - self._began) * 1000
        counted = {"num_tool_calls": self._tools, "tool_latency_ms": self._tool_latency, "total_latency_ms": total}
        return self._llm.model_copy(update=counted)


class OldAgentServer:
    """Hosts one agent. Used as `async with OldAgentServer(agent) as server`."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.address = ""
        """http://HOST:PORT."""
        self.inits: defaultdict[str, list[RolloutRequest]] = defaultdict(list)
        """Every Init's body, as it came, by rollout id."""
        self.chat_statuses: defaultdict[str, list[int]] = defaultdict(list)
        """The status of every answer to a chat, by rollout id."""
        self.acks: defaultdict[str, list[int]] = defaultdict(list)
        """The status of every answer to an outcome, by rollout id."""
        self.patience = 20.0
        """Seconds that one try of a call may take."""
        self._known: dict[str, InitResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._completed = 0

    async def __aenter__(self) -> "OldAgentServer":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes([web.post("/v1/rollout/init", self._init), web.get("/health", self._health)])
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "healthy",
                "agent_loop": self.agent.name,
                "active_rollouts": len(self._tasks),
                "completed_rollouts": self._completed,
            }
        )

    async def _init(self, request: web.Request) -> web.Response:
        try:
            asked = RolloutRequest.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"detail": error.errors(include_context=False)}, status=422)
        self.inits[asked.rollout_id].append(asked)
        key = asked.idempotency_key or asked.rollout_id
        if key not in self._known:
            self._known[key] = InitResponse(rollout_id=asked.rollout_id, tools=self.agent.get_tools(asked))
            task = asyncio.create_task(self._run(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.json_response(body(self._known[key]), status=202)

    async def _run(self, request: RolloutRequest) -> None:
        """Run and report. As in the SDK, a report that fails is followed by a second, contradicting one."""
        ctx = OldContext(request, self._post)
        try:
            await self._report(request, await self.agent.run(ctx))
        except Exception as error:
            with contextlib.suppress(CallFailed):
                await self._report(request, ctx.raised(error))
        self._completed += 1

    async def _report(self, request: RolloutRequest, result: RolloutResponse) -> None:
        await self._post(request, "/v1/rollout/completed", body(result), retries=2)

    async def _post(self, request: RolloutRequest, path: str, sent: dict[str, Any], *, retries: int) -> Any:
        """The old client's loop. Only 200 is an answer."""
        statuses = (self.acks if path.endswith("/completed") else self.chat_statuses)[request.rollout_id]
        headers = {"Authorization": f"Bearer {request.api_key}"} if request.api_key else {}
        url, limit = request.server_url.rstrip("/") + path, aiohttp.ClientTimeout(total=self.patience)
        problem = "No attempts made"
        for retry in range(retries + 1):
            await asyncio.sleep(_PAUSE * 2**retry if retry else 0)  # the backoff of the original
            try:
                async with self._session.post(url, json=sent, headers=headers, timeout=limit) as answer:
                    statuses.append(answer.status)
                    if answer.status == 200:
                        return await answer.json()
                    problem = f"HTTP {answer.status}: {await answer.text()}"
                    if 400 <= answer.status < 500:
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise CallFailed(problem)
