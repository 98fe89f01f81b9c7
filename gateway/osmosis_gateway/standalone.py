"""The standalone gateway: a process that serves the legacy HTTP contract in front of a gRPC agent server.

The gateway stores nothing about rollouts. The URL and the key of a rollout's trainer are in the state of the callback,
which the agent server sends with every chat and outcome. So a gateway that was killed can be restarted with the same
ports and the same `callback_key`, and continues with its rollouts.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from osmosis_gateway import http_bodies
from osmosis_gateway.http_server import tokens_of
from osmosis_gateway.leases import Leases
from osmosis_gateway.legacy_trainers import HttpTrainer, HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.rollout_routes import add_rollout_routes
from osmosis_gateway.rollout_trainers import RolloutTrainer
from osmosis_gateway.routes import HttpAccess, add_routes
from osmosis_grpc.network.channel_options import default_connections
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.observability import Reading, Source
from osmosis_grpc.observability.metric_families import ProcessMetrics
from osmosis_grpc.protocol.errors import CallError, InvalidArgument, Unavailable, Unimplemented
from osmosis_grpc.protocol.types import InitRequest, ToolDict, TraceContext
from osmosis_grpc.settings.settings import RolloutSettings, get_settings
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer import Callback, ChatRequest, ChatResponse, RolloutClient, RolloutOutcome
from osmosis_grpc.trainer.transports.callback.standalone_recorder import CallbackRecorder

NO_ENGINE = "this gateway has no engine: send the request to its agent server"
_REMEMBERED = 100_000  # rollouts whose tools are cached


class GatewayMetrics:
    """A Source with the metrics of a standalone gateway, which acts as a trainer towards its agent server."""

    def __init__(self, trainer: Source) -> None:
        self._sources: tuple[Source, ...] = (ProcessMetrics(), trainer)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        for source in self._sources:
            yield from source.read()


class RemoteRollouts:
    """Implements the protocol Rollouts of routes.py with an agent server behind gRPC, and answers its callbacks."""

    def __init__(self, client: RolloutClient, trainers: HttpTrainers, *, authenticated: bool, loopback: bool) -> None:
        self._client = client
        self._trainers = trainers
        self._authenticated = authenticated
        self._loopback = loopback
        self._tools: OrderedDict[str, Sequence[ToolDict]] = OrderedDict()
        self._beginning: dict[str, asyncio.Event] = {}
        """Rollouts whose Init is not answered yet. Their chats can arrive before the gateway knows their tools."""
        self.make_callback: Callable[[bytes], Callback]
        """Takes a state, and returns a callback to this gateway with this state."""

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        assert init.callback is not None
        given = init.callback
        await self._trainers.trainer(given, field="server_url", authenticated=authenticated, loopback=loopback)
        trace = [init.trace.traceparent, init.trace.tracestate] if init.trace is not None else None
        state = {"server_url": given.target, "api_key": given.credential, "trace": trace}
        if given.state:
            state["terms"] = given.state.decode()
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
        return http_bodies.health(
            info.capacity,
            (loop.name for loop in info.agent_loops),
            draining=info.draining,
            instance_id=info.journal_id,
            process_id=info.process_id,
        )

    @property
    def leases(self) -> Leases:
        raise Unimplemented(
            "this gateway stores no results: send callback URLs with the rollout, or send it to the HTTP port of the "
            "agent server (osmosis-grpc serve -p PORT), which has leases"
        )

    async def cancel(self, owner: str, ids: Iterable[str] | None, prefix: str | None) -> dict[str, str]:
        raise Unimplemented(NO_ENGINE)

    async def drain(self, owner: str, seconds: float) -> dict[str, Any]:
        raise Unimplemented(NO_ENGINE)

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        """Pass a chat of the agent server on to the rollout's trainer."""
        trainer = await self._trainer(request.state)
        if request.rollout_id in self._beginning:
            await self._beginning[request.rollout_id].wait()
        rollout_tools = self._tools.get(request.rollout_id)
        own_tools = rollout_tools is None or list(request.tools or ()) != list(rollout_tools)
        return await trainer.chat(replace(request, tools_overridden=own_tools))

    async def record(self, outcome: RolloutOutcome, state: bytes, credential: str) -> None:
        """Pass an outcome of the agent server on to the rollout's trainer."""
        trainer = await self._trainer(state)
        await trainer.complete(outcome)
        self._tools.pop(outcome.rollout_id, None)

    async def _trainer(self, state: bytes) -> HttpTrainer | RolloutTrainer:
        """Return the trainer that a callback's state names, after checking its address again.

        Raises InvalidArgument for a state that this gateway did not make. Raises Unavailable if the address is refused,
        so that the agent server retries: the address was allowed at Init, so perhaps its name does not resolve now.
        """
        try:
            given = json.loads(state)
            url, key, trace = str(given["server_url"]), str(given["api_key"]), given.get("trace")
            to = Callback(target=url, credential=key, state=str(given.get("terms", "")).encode())
            context = TraceContext(*map(str, trace)) if trace else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument("state", "was not made by this gateway") from None
        try:
            return await self._trainers.trainer(
                to, context, field="server_url", authenticated=self._authenticated, loopback=self._loopback
            )
        except InvalidArgument as error:
            raise Unavailable(f"the trainer cannot be called at the moment: {error}") from None


@asynccontextmanager
async def serve_standalone(
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
) -> AsyncIterator[tuple[HttpServer, CallbackRecorder]]:
    """Serve the legacy contract in front of the agent server at `target`.

    `security` sets how HTTP callers authenticate. If it has no tokens, the tokens of the settings apply. `credentials`
    are sent to `target`; the default is the token of the client settings. The credentials of callbacks are derived from
    the secret `callback_key`, so a restarted gateway needs the same secret to continue. Raises OSError if a port is
    taken, and ValueError for an address that needs TLS or tokens.
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
        policy = TargetPolicy(loopback=loopback, allow=allow_targets)
        trainers = HttpTrainers(calls, policy, known.client, answered={})
        rollouts = RemoteRollouts(client, trainers, authenticated=guard.authenticates, loopback=loopback)
        keys = ServerSecurity([callback_key] if callback_key else ())
        address = f"127.0.0.1:{callback_port}"
        async with CallbackRecorder(rollouts.chat, rollouts.record, listen=address, security=keys) as back:
            rollouts.make_callback = lambda state: back.callback(state=state, delta=False)
            app = http_app("osmosis_grpc")
            app.state.rollouts, app.state.metrics = rollouts, GatewayMetrics(back.source)
            http_access = HttpAccess(
                tokens=guard.tokens,
                admin_tokens=guard.admin_tokens,
                certificates=guard.asks_certificates,
                max_metadata_bytes=known.server.max_metadata_size_bytes,
                loopback=loopback,
            )
            add_routes(app, http_access)
            add_rollout_routes(app, http_access)
            supervisor = Supervisor("the gateway")
            connections = known.server.max_connections or default_connections()
            async with HttpServer(
                app, host=host, port=port, tls=guard.tls, supervisor=supervisor, connections=connections
            ) as http:
                yield http, back
