"""The gateway in a process of its own: HTTP on one side, a gRPC agent server on the other.

It keeps nothing of rollouts: where a rollout's trainer is, and that trainer's key, stand in the callback's state.
The state comes back with every chat and completion, so a gateway that was killed goes on when it is started again on
the same ports, with the same key for the credentials of its callbacks.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from osmosis_gateway.calls import Calls
from osmosis_gateway.http_server import HttpServer, tokens_of
from osmosis_gateway.metrics import GatewayMetrics
from osmosis_gateway.routes import HttpAccess, add_routes, gateway_app
from osmosis_gateway.trainers import HttpTrainer, HttpTrainers
from osmosis_grpc.errors import CallError, InvalidArgument, Unavailable
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.link.server_security import ServerSecurity
from osmosis_grpc.link.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.settings import RolloutSettings, get_settings
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer import Callback, ChatRequest, ChatResponse, Completion, RolloutClient, TrainerServer
from osmosis_grpc.types import InitRequest, ToolDict, TraceContext

_REMEMBERED = 100_000  # rollouts whose tools are known


class RemoteRollouts:
    """Starts rollouts on an agent server across gRPC, and answers its calls back."""

    def __init__(self, client: RolloutClient, trainers: HttpTrainers, *, authenticated: bool, loopback: bool) -> None:
        self._client = client
        self._trainers = trainers
        self._authenticated = authenticated
        self._loopback = loopback
        self._tools: OrderedDict[str, Sequence[ToolDict]] = OrderedDict()
        self._beginning: dict[str, asyncio.Event] = {}
        """Rollouts whose Init is not answered yet: their agents may ask before we know their tools."""
        self.make_callback: Callable[[bytes], Callback]
        """Makes a callback with a state: where the agent server calls back."""

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        assert init.callback is not None
        url, key = init.callback.target, init.callback.credential
        await self._trainers.trainer(url, key, field="server_url", authenticated=authenticated, loopback=loopback)
        state: dict[str, Any] = {"server_url": url, "api_key": key}
        if init.trace is not None:
            state["trace"] = [init.trace.traceparent, init.trace.tracestate]
        callback = self.make_callback(json.dumps(state).encode())
        rollout_id = init.request.rollout_id
        begun = self._beginning[rollout_id] = asyncio.Event()
        try:
            started = await self._client.init(init.request, callback=callback)
            self._tools[rollout_id] = started.tools
        finally:
            begun.set()
            if self._beginning.get(rollout_id) is begun:
                del self._beginning[rollout_id]
        if len(self._tools) > _REMEMBERED:
            self._tools.popitem(last=False)
        return started.rollout_id, started.tools

    async def health(self) -> dict[str, Any]:
        try:
            info = await self._client.info()
        except CallError as error:
            raise Unavailable(f"the agent server does not answer: {error}", retry_after=5.0) from None
        left = info.capacity
        return {
            "status": "draining" if info.draining else "healthy",
            "agent_loop": ", ".join(loop.name for loop in info.agent_loops),
            "active_rollouts": left.running + left.queued,
            "completed_rollouts": left.completed,
            "undelivered": left.undelivered,
        }

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        """A chat of the agent server's, asked of the rollout's trainer."""
        trainer = await self._trainer(request.state)
        if request.rollout_id in self._beginning:
            await self._beginning[request.rollout_id].wait()
        usual = self._tools.get(request.rollout_id)
        own = usual is None or list(request.tools or ()) != list(usual)
        return await trainer.chat(replace(request, tools_overridden=own))

    async def record(self, completion: Completion, state: bytes, credential: str) -> None:
        """A completion of the agent server's, brought to the rollout's trainer."""
        trainer = await self._trainer(state)
        await trainer.complete(completion)
        self._tools.pop(completion.rollout_id, None)

    async def _trainer(self, state: bytes) -> HttpTrainer:
        """The trainer that a callback's state names, looked at again. What was allowed at Init and is not now may
        be a name that does not resolve for a while: nothing is given up for it.
        """
        try:
            given = json.loads(state)
            url, key, trace = str(given["server_url"]), str(given["api_key"]), given.get("trace")
            context = TraceContext(*map(str, trace)) if trace else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument("state", "is not of this gateway's making") from None
        try:
            return await self._trainers.trainer(
                url, key, context, field="server_url", authenticated=self._authenticated, loopback=self._loopback
            )
        except InvalidArgument as error:
            raise Unavailable(f"the trainer cannot be called now: {error}") from None


@asynccontextmanager
async def stand_alone(
    target: str,
    *,
    host: str = "127.0.0.1",
    port: int = 9000,
    callback_port: int = 50052,
    allow_targets: Sequence[str] = (),
    settings: RolloutSettings | None = None,
    security: ServerSecurity | None = None,
    credentials: Credentials | None = None,
    callback_key: str = "",
) -> AsyncIterator[tuple[HttpServer, TrainerServer]]:
    """The legacy contract in front of the agent server at `target`.

    `security` is for HTTP callers, its tokens those of the settings when it has none; `credentials` tells
    how `target` is dialled, by default with the token of the client settings. `callback_key` is a secret that the
    credentials of callbacks are made of; with the same one a gateway that is started again goes on. Raises OSError when
    a port is taken, ValueError for an address that is not guarded enough.
    """
    known = settings or get_settings()
    guard = security or ServerSecurity()
    if not guard.tokens:
        guard = ServerSecurity(tokens_of(known), tls=guard.tls, insecure=guard.insecure)
    guard.check_host(host)
    dialled = credentials or Credentials(token=known.client.secret("token"))
    loopback = is_loopback(host)
    async with (
        Calls(known.client, checked_only=True) as calls,
        RolloutClient(target, token=dialled.token, tls=dialled.tls, insecure=dialled.insecure) as client,
    ):
        trainers = HttpTrainers(calls, TargetPolicy(loopback=loopback, allow=allow_targets), known.client)
        rollouts = RemoteRollouts(client, trainers, authenticated=guard.authenticates, loopback=loopback)
        keys = [callback_key] if callback_key else ()
        async with TrainerServer(rollouts.chat, port=callback_port, recorder=rollouts.record, tokens=keys) as back:
            rollouts.make_callback = lambda state: back.callback(state=state, delta=False)
            app = gateway_app("osmosis_grpc")
            app.state.rollouts, app.state.metrics = rollouts, GatewayMetrics(back.source)
            http_access = HttpAccess(
                tokens=guard.tokens,
                certificates=guard.asks_certificates,
                max_metadata_bytes=known.server.max_metadata_size_bytes,
                loopback=loopback,
            )
            add_routes(app, http_access)
            supervisor = Supervisor("the gateway")
            async with HttpServer(app, host=host, port=port, tls=guard.tls, supervisor=supervisor) as http:
                yield http, back
