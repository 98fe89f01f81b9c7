"""Adapts a legacy HTTP agent server to the Runnable port, so that the engine can run the agent of that server.

tools() posts the Init to the legacy server, which then starts its agent at once. The agent sends its chats and its
outcome to a small HTTP listener, and run() relays them. Each run has its own key, and every call to the listener must
send the key of its run.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from osmosis_gateway import chat_bodies, http_bodies
from osmosis_gateway.chat_bodies import ChatBody
from osmosis_gateway.http_bodies import CompletedBody
from osmosis_gateway.outgoing_calls import Base, Calls
from osmosis_gateway.relay import Relay, count_tool_messages
from osmosis_gateway.routes import body_of, invalid, responses
from osmosis_grpc.agent import RolloutContext, RolloutResult
from osmosis_grpc.agent.loop import name_problem
from osmosis_grpc.agent.request import refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome, outcome_of
from osmosis_grpc.endpoints.key_signatures import RolloutKeys
from osmosis_grpc.network.bearer_tokens import bearer
from osmosis_grpc.network.http.bounded_json import BodyRefused, Bounds, read_json
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.protocol.errors import (
    CallError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OsmosisValidationError,
    ResourceExhausted,
    RolloutEndedError,
    Unavailable,
)
from osmosis_grpc.protocol.types import RolloutRequest, ToolDict, jsontext
from osmosis_grpc.protocol.types.requests import MAX_ID_CHARS
from osmosis_grpc.settings.settings import RolloutClientSettings, get_settings

SILENCE = 3600.0
"""When a legacy agent sends nothing for this many seconds and no chat is open, the run fails with LegacyAgentLost."""
ANSWER_WITHIN = 8.0
"""The legacy server must answer an Init or a /health call within this many seconds.

The engine waits 10 s for tools(), and this timeout must end earlier.
"""


class HttpAgent:
    """A Runnable for the agent of one legacy server. Use it as `async with HttpAgent("http://HOST:PORT") as agent`.

    Start and stop the agent server that hosts the HttpAgent inside this `async with` block. `name` is the name of the
    agent. Without `name`, entering the block reads the name from the legacy server's /health, and raises CallError if
    the legacy server does not answer. The legacy server calls a listener at the address `listen`. If it needs another
    URL to reach the listener, pass that as `public_url`. `api_key` is sent to the legacy server.
    """

    name = "legacy"
    lists_tools_without_request = False
    replayable = False

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        api_key: str = "",
        listen: tuple[str, int] = ("127.0.0.1", 0),
        public_url: str = "",
        silence: float = SILENCE,
        settings: RolloutClientSettings | None = None,
    ) -> None:
        self.source = self
        self._base = Base.of(url, "url")
        self._given_name = name
        self._key = api_key
        self._silence = silence
        self._run_keys = RolloutKeys()
        self._relays: dict[str, Relay] = {}
        """The relay of each run, by the run's key."""
        self._keys: dict[tuple[str, int], str] = {}
        self._calls = Calls(settings or get_settings().client, whom=f"the legacy agent server {self._base.authority}")
        self._listener = HttpServer(self._app(), host=listen[0], port=listen[1])
        self.supervisor = self._listener.supervisor
        """When the listener fails, `failure` of this supervisor is set, and chats can no longer arrive."""
        self._public_url = public_url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "HttpAgent":
        await self._stack.enter_async_context(self._calls)
        try:
            self.name = self._given_name or await self._ask_name()
            await self._stack.enter_async_context(self._listener)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: Any) -> None:
        for relay in self._relays.values():
            relay.close()
        await self._stack.aclose()

    @property
    def runs(self) -> int:
        """The number of runs that have not ended."""
        return len(self._keys)

    @property
    def open_chats(self) -> int:
        """The number of chats that wait for a reply, or whose reply the legacy agent has not received."""
        return sum(len(relay.pending) for relay in self._relays.values())

    async def tools(self, request: RolloutRequest) -> list[ToolDict]:
        refuse_grader_timeout(self.name, request)
        legacy_id = request.rollout_id if request.attempt == 1 else f"{request.rollout_id}~{request.attempt}"
        if len(legacy_id) > MAX_ID_CHARS:
            raise FailedPrecondition(f"the id {legacy_id!r} has more than {MAX_ID_CHARS} characters", kind="ROLLOUT_ID")
        key = self._run_keys.make()
        self._keys[request.rollout_id, request.attempt], self._relays[key] = key, Relay()
        server_url = self._public_url or f"http://{self._listener.address}"
        body = http_bodies.init_body(request, legacy_id, server_url, key)
        raw = await self._post_init(jsontext.render(body).encode())
        try:
            answer = jsontext.parse(raw.decode(errors="replace"), "body")
            tools = answer.get("tools") if isinstance(answer, dict) else answer
            if not isinstance(answer, dict) or not isinstance(tools, list | None):
                raise InvalidArgument("body.tools", "is not a list")
        except InvalidArgument as error:
            raise Internal(f"the answer of {self._base.authority} to an Init cannot be read: {error}") from None
        return tools or []

    async def run(self, context: RolloutContext) -> RunOutcome:
        relay = self._relays[self._keys[context.request.rollout_id, context.request.attempt]]
        relay.begin(context)
        try:
            body = await relay.completed(self._silence)
        finally:
            relay.close()
        count, latency = body.tool_calls
        if body.status == "ERROR":  # after an exception the legacy server counts no calls, so count tool messages
            count = max(count, relay.tool_messages - count_tool_messages(context.request.messages))
        for _ in range(count):
            context.record_tool_call(latency / count)
        if body.status != "ERROR":
            completed = context.complete(
                body.final_messages,
                finish_reason=body.finish_reason or "stop",
                reward=body.reward,
                extra_fields=body.extra_fields,
            )
            return outcome_of(completed)
        if relay.failure is not None:  # the agent failed because its last chat failed at the trainer
            raise relay.failure
        failed = RolloutResult(
            status="ERROR",
            final_messages=body.final_messages,
            finish_reason=body.finish_reason or "error",
            error_message=body.error_message or "the legacy agent gave up without a reason",
            extra_fields=body.extra_fields,
        )
        return outcome_of(failed)

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Do nothing: the agent does not know the other rollouts of a group."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        relay = self._relays.pop(self._keys.pop((rollout_id, attempt), ""), None)
        if relay is not None:
            relay.close()

    async def _post_init(self, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self._calls.post(self._base.join(http_bodies.INIT_PATH), body, key=self._key)
        except TimeoutError:
            reported = f"the legacy agent server {self._base.authority} did not answer within {ANSWER_WITHIN:g} s"
            raise Unavailable(reported, retry_after=1.0) from None
        except OsmosisValidationError as error:
            raise Internal(str(error)) from None
        except CallError as error:
            kind = ResourceExhausted if error.status_code == 429 else Unavailable
            raise kind(str(error), retry_after=error.retry_after or 1.0) from None

    async def _ask_name(self) -> str:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                raw = await self._calls.post(self._base.join("/health"), None)
            health = jsontext.parse_object(raw.decode(errors="replace"), "health")
        except TimeoutError:
            raise Unavailable(f"{self._base.authority}/health did not answer within {ANSWER_WITHIN:g} s") from None
        except InvalidArgument as error:
            raise Internal(f"{self._base.authority}/health cannot be read: {error}") from None
        problem = name_problem(health.get("agent_loop"))
        if problem:
            raise Internal(f"{self._base.authority}/health has no valid agent_loop ({problem[1]}); pass a name")
        return str(health["agent_loop"])

    def _relay(self, request: Request) -> Relay | None:
        """Return the relay of the run whose key a call sent; None if the run has ended.

        Raises Unauthenticated if the key is missing or has a wrong signature.
        """
        key = bearer(request.headers.get("authorization", ""))
        self._run_keys.check(key)
        return self._relays.get(key)

    def _app(self) -> FastAPI:
        app = http_app("osmosis_grpc, for a legacy agent server")
        app.add_exception_handler(RolloutEndedError, _ended)
        bounds = Bounds()

        @app.post(
            chat_bodies.CHAT_PATH,
            responses=responses(401, 408, 410, 413, 415, 424) | invalid(),
            openapi_extra=body_of(ChatBody),
        )
        async def chat(request: Request) -> JSONResponse:
            """Return a model reply. The call waits until the run of the rollout has begun."""
            relay = self._relay(request)
            body, _ = await read_json(request, bounds, repair=True)
            rollout_id, messages, params = chat_bodies.read_chat(body)
            if relay is None:
                raise RolloutEndedError(f"rollout {rollout_id} has ended")
            try:
                result = await relay.chat(messages, params, request.is_disconnected)
            except ValueError as error:
                raise InvalidArgument("", str(error)) from None
            except CallError as error:  # the engine has retried already; after a 424 the legacy agent does not retry
                return JSONResponse({"detail": str(error)}, 424)
            return JSONResponse(chat_bodies.reply_body(rollout_id, result, int(time.time())))

        @app.post(http_bodies.COMPLETED_PATH, responses=responses(400, 401, 408), openapi_extra=body_of(CompletedBody))
        async def completed(request: Request) -> JSONResponse:
            """Take the result of a rollout. Only the first result counts.

            If the result cannot be read, the rollout ends with ERROR. The status of the answer is still 200, because
            the legacy server would otherwise send the same body again.
            """
            relay = self._relay(request)
            try:
                body, _ = await read_json(request, bounds, repair=True)
                reported = http_bodies.validated(CompletedBody, body)
            except BodyRefused as error:
                if error.status_code in (400, 408):  # the body did not arrive, so the legacy server must send it again
                    raise
                reported = http_bodies.unreadable(str(error))
            except InvalidArgument as error:
                reported = http_bodies.unreadable(str(error))
            if relay is not None:
                relay.complete(reported)
            return JSONResponse({"status": "ok"})

        return app


async def _ended(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 410)
