"""Hosts a rollout server of the Osmosis SDK 0.2.18 or later as an agent.

run() posts the rollout to the server. One body fits all versions: a server that answers with a lease is polled for the
result, and any other one sends its two callbacks. The agent sends its chats to the rollout's base URL, which is served
here.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from osmosis_gateway.http_agent import ANSWER_WITHIN, SILENCE, HttpAgent
from osmosis_gateway.outgoing_calls import Base, Calls
from osmosis_gateway.relay import LegacyAgentLost
from osmosis_gateway.rollout_routes import LEASE_HEADER
from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.network.bearer_tokens import bearer
from osmosis_grpc.network.http.bounded_json import Bounds, read_json
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.protocol.errors import CallError, InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import Failure, FailureReason, RolloutRequest, ToolDict, jsontext
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.settings.settings import RolloutClientSettings, get_settings
from osmosis_grpc.supervise import SYSTEM

ENDED = ("success", "failure", "cancelled")
RETRIES = 8
"""The number of retries, for example after the Retry-After of a server at capacity."""
_CALLBACK = "/callbacks/{kind}"
_STRANGE = re.compile(r"[^A-Za-z0-9._-]+")
_TIMEOUT, _BROKEN = "timeout", ("internal_error", "lease_expired")


@dataclass(slots=True, eq=False)
class _Callbacks:
    """The callbacks of one run."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The first body of each kind."""

    def add(self, kind: str, body: Mapping[str, Any]) -> None:
        self.bodies.setdefault(kind, body)
        self.arrived.set()

    def result(self) -> Mapping[str, Any] | None:
        """Return the body that decides the result: a failed completion, or the grader's; None before it arrives."""
        completion, graded = self.bodies.get("completion"), self.bodies.get("grader")
        if completion is not None and completion.get("status") == "failure":
            return completion
        return graded


class WorkflowServerAgent:
    """A Runnable for one rollout server of the SDK. Use it as `async with WorkflowServerAgent(url) as agent`.

    Args:
        url: The URL of the server.
        name: The name of the agent, because the server does not report one.
        api_key: The token that the server requires.
        listen: The host and port where base URLs and callbacks are served.
        public_url: The URL by which the server reaches `listen`, if it needs another one.
        silence: If no chat and no result arrives for this many seconds, the run fails.
        settings: The time limits and the retries of calls.
    """

    lists_tools_without_request = True
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
        self.name = name or "legacy"
        self._base, self._key, self._silence = Base.of(url, "url"), api_key, silence
        self._public_url = public_url
        self._callbacks: dict[str, _Callbacks] = {}
        self._calls = Calls(settings or get_settings().client, whom=f"the rollout server {self._base.authority}")
        self._endpoints = Endpoints(self._address)
        self._listener = HttpServer(self._app(), host=listen[0], port=listen[1])
        self.supervisor = self._listener.supervisor
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "WorkflowServerAgent":
        await self._stack.enter_async_context(self._calls)
        await self._stack.enter_async_context(self._listener)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    def _address(self) -> str:
        return self._public_url or f"http://{self._listener.address}"

    def tools(self, request: RolloutRequest) -> list[ToolDict]:
        """Return no tools: each chat brings its own."""
        return []

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Do nothing: the server knows no groups."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Do nothing: tools() reserves nothing."""

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Post the rollout, and wait for its result. Raises CallError and LegacyAgentLost."""
        with self._endpoints.open(context) as endpoint:
            callbacks = self._callbacks[endpoint.api_key] = _Callbacks()
            try:
                rollout_id = f"{_STRANGE.sub('-', context.request.rollout_id)[:200]}~{SYSTEM.new_id()[:8]}"
                body = self._body(context.request, rollout_id, endpoint)
                answer = await self._posted("/rollout", body)
                lease = answer.get("polling_lease_token")
                if isinstance(lease, str):
                    result = await self._polled(rollout_id, lease)
                else:
                    result = await self._called_back(callbacks, context)
            finally:
                del self._callbacks[endpoint.api_key]
        if result.get("status") != "success" and endpoint.failure is not None:
            raise endpoint.failure  # the agent has failed because the trainer refused its chat
        return _outcome(result, context)

    def _body(self, request: RolloutRequest, rollout_id: str, endpoint: Endpoint) -> dict[str, Any]:
        callback = f"{self._address()}{_CALLBACK}"
        return {
            "rollout_id": rollout_id,
            "initial_messages": list(request.messages),
            "label": request.label,
            "metadata": dict(request.metadata) or None,
            "chat_completions_url": endpoint.base_url,
            # up to 0.3.0, chats and callbacks use the same key
            "controller_api_key": endpoint.api_key,
            "llm_api_key": endpoint.api_key,
            "completion_callback_url": callback.format(kind="completion"),
            "grader_callback_url": callback.format(kind="grader"),
            "grade": request.label is not None or bool(request.metadata),
            "agent_timeout_sec": request.agent_timeout,
            "grader_timeout_sec": request.grader_timeout,
        }

    async def _posted(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        sent = jsontext.render(dict(body)).encode()
        return self._read(await self._calls.post(self._base.join(path), sent, key=self._key, retries=RETRIES))

    async def _polled(self, rollout_id: str, lease: str) -> Mapping[str, Any]:
        """Poll until the rollout has ended, and return its result."""
        url = self._base.join(f"/rollout/{rollout_id}/result")
        while True:
            raw = await self._calls.post(url, None, key=self._key, retries=RETRIES, headers={LEASE_HEADER: lease})
            result = self._read(raw)
            if result.get("status") in ENDED:
                return result

    async def _called_back(self, callbacks: _Callbacks, context: RolloutContext) -> Mapping[str, Any]:
        """Wait for the callbacks. Raises LegacyAgentLost if no callback and no chat arrives for too long."""
        heard = -1
        while (result := callbacks.result()) is None:
            callbacks.arrived.clear()
            try:
                async with asyncio.timeout(self._silence):
                    await callbacks.arrived.wait()
            except TimeoutError:
                calls = context.llm.get_metrics().num_llm_calls
                if calls == heard:
                    raise LegacyAgentLost(f"the rollout server was silent for {self._silence:g} s") from None
                heard = calls
        return result

    def _read(self, raw: bytes) -> Mapping[str, Any]:
        try:
            return jsontext.parse_object(raw.decode(errors="replace") or "{}", "body")
        except InvalidArgument as error:
            raise Unavailable(f"the answer of {self._base.authority} cannot be read: {error}") from None

    def _app(self) -> FastAPI:
        app, bounds = http_app("osmosis_grpc, for a rollout server"), Bounds()

        @app.post(_CALLBACK, response_model=None)
        async def callback(request: Request, kind: str) -> JSONResponse:
            """Take a callback. Only the first one of its kind counts."""
            callbacks = self._callbacks.get(bearer(request.headers.get("authorization", "")))
            if callbacks is None:
                return JSONResponse({"detail": "the key is not that of a running rollout"}, 401)
            body, _ = await read_json(request, bounds, repair=True)
            if isinstance(body, dict):
                callbacks.add(kind, body)
            return JSONResponse({"status": "ok"})

        app.mount("/", base_url_app(self._endpoints))
        return app


def _outcome(result: Mapping[str, Any], context: RolloutContext) -> RunOutcome:
    """Convert a result, which is the body of the deciding callback or of the last poll, to an outcome."""
    samples = result.get("samples")
    rows = dict(samples) if isinstance(samples, dict) else {}
    one = result.get("sample")
    if isinstance(one, dict) and not rows:
        rows = {"": one}
    said = str(result.get("err_message") or "")
    if result.get("status") != "success" and (said or result.get("err_category") or "grader" not in _kinds(result)):
        return RunOutcome(failure=_failure(said, str(result.get("err_category") or "")), messages=None)
    rewards, telemetry = {}, {}
    for given, row in rows.items():
        name = given if given in context.samples else next(iter(context.samples), "")
        if row.get("remove_sample") and name:
            context.set_train(False, sample=name)
        elif row.get("reward") is not None:
            reward = number_of(row["reward"])
            if reward is None:
                return RunOutcome(failure=_failure(f"the reward {row['reward']!r:.80} is no number", ""), messages=None)
            rewards[name] = reward
        about = {key: row[key] for key in ("metrics", "extra_fields") if row.get(key)}
        if about:
            telemetry[name] = about
    extra = {"samples": telemetry} if telemetry else None
    if len(rewards) == 1:
        return RunOutcome(messages=None, reward=next(iter(rewards.values())), extra_fields=extra)
    return RunOutcome(messages=None, sample_rewards=rewards, extra_fields=extra)


def _kinds(result: Mapping[str, Any]) -> set[str]:
    """Return {"grader"} if a body can be a grader's, which has samples. Return an empty set for a completion."""
    return {"grader"} if "samples" in result or "sample" in result else set()


def _failure(said: str, category: str) -> Failure:
    text = clip(said or "the rollout failed without a reason")
    if category in _BROKEN:
        return Failure("server", text, True, reason=FailureReason.SERVER_ERROR)
    timeout = category == _TIMEOUT
    return Failure("agent", text, False, reason=FailureReason.AGENT_TIMEOUT if timeout else FailureReason.AGENT_ERROR)


async def hosted_legacy_agent(url: str, **options: Any) -> "HttpAgent | WorkflowServerAgent":
    """Return the agent for a legacy server. The server's /health decides its class. Enter the agent before you use it.

    Args:
        url: The URL of the server.
        **options: Parameters that both classes have.

    Raises:
        InvalidArgument: The URL is wrong.
    """
    base = Base.of(url, "url")
    settings = options.get("settings") or get_settings().client
    try:
        async with Calls(settings, whom="the legacy agent server") as calls, asyncio.timeout(ANSWER_WITHIN):
            raw = await calls.post(base.join("/health"), None, key=options.get("api_key", ""))
        health = jsontext.parse_object(raw.decode(errors="replace"), "health")
    except (CallError, TimeoutError, InvalidArgument):
        return HttpAgent(url, **options)  # with a name it needs no /health; otherwise entering it raises the error
    later = "agent_loop" not in health and health.keys() & {"concurrency", "lifecycle", "process_id"}
    return WorkflowServerAgent(url, **options) if later else HttpAgent(url, **options)
