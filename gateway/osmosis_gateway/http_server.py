"""Serves the legacy HTTP contracts and the metrics of an agent server in this process."""

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from fastapi import FastAPI
from starlette.middleware import Middleware

from osmosis_gateway import http_bodies
from osmosis_gateway.leases import Leases, LeaseTimes
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.rollout_routes import add_rollout_routes
from osmosis_gateway.routes import HttpAccess, add_metrics, add_routes
from osmosis_gateway.workers import KIND, SiblingGuard, WorkerCalls, WorkerRoutes
from osmosis_grpc.engine import Engine, Peer
from osmosis_grpc.engine.record import Record
from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.channel_options import default_connections
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import client_context
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Capacity, InitRequest, RolloutState, ToolDict
from osmosis_grpc.server import AgentServer
from osmosis_grpc.settings.settings import RolloutSettings, get_settings

MAX_LISTED = 10_000
"""The answer to a drain names at most this many rollouts of the process."""
METRICS_CONNECTIONS = 32
"""The most connections to the port of --metrics-port at once. One address, such as 127.0.0.1, can have half of them."""


class InProcessRollouts:
    """Implements the protocol Rollouts of routes.py with an engine.

    Args:
        engine: The engine.
        peer: Makes the Peer that receives a rollout's calls.
        leases: The leases of the engine's rollouts.
        drain: Starts a drain.
    """

    def __init__(
        self, engine: Engine, peer: Callable[..., Awaitable[Peer]], leases: Leases, drain: Callable[[], Awaitable[None]]
    ) -> None:
        self._engine = engine
        self._peer = peer
        self.leases = leases
        self._drain = drain
        self._start_time = engine.context.system.time()

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        peer = await self._peer(init, field="server_url", authenticated=authenticated, loopback=loopback)
        record, started = await self._engine.init(init, owner=owner, peer=peer)
        delivery, process = record.delivery, self._engine.context.earlier_runs.process_id
        if delivery.outcome is not None and not started:
            other_trainer, restarted = record.init is init, delivery.ended_by.process_id != process
            if other_trainer or restarted:  # otherwise the trainer has already got the outcome
                self._engine.outbox.resend(record)
        return record.rollout_id, record.tools

    async def health(self) -> dict[str, Any]:
        supervisor = self._engine.supervisor
        if supervisor.failure is not None:
            raise Unavailable(f"{supervisor.owner} has failed")
        loops, draining = sorted(self._engine.context.runnables), self._engine.shutdown.draining
        return http_bodies.health(
            self._engine.capacity(),
            loops,
            draining=draining,
            instance_id=self._engine.journal.journal_id,
            process_id=self._engine.context.earlier_runs.process_id,
        )

    async def cancel(self, owner: str, ids: Iterable[str] | None, prefix: str | None) -> dict[str, str]:
        """Cancel the owner's rollouts with these ids, or with this id prefix, or all. Return a disposition for each.

        Once this method has returned, a crash does not undo the cancellation.
        """
        live = {r.rollout_id: r for r in self._engine.context.table.live() if r.owner == owner}
        chosen = ids if ids is not None else [name for name in live if name.startswith(prefix or "")]
        found = {name: self._cancel(live.get(name)) for name in chosen}
        await self._engine.log.flush()
        return found

    def _cancel(self, record: Record | None) -> str:
        if record is None:
            return "not_found"
        queued = record.state in (RolloutState.ACCEPTED, RolloutState.QUEUED)
        results = self._engine.cancel(record.owner, rollout_id=record.rollout_id)
        if not any(result.cancelled for result in results):
            return "not_found"
        return "cancelled_queued" if queued else "cancelled_running"

    async def drain(self, owner: str, seconds: float) -> dict[str, Any]:
        """Start a drain, and wait at most `seconds` until no rollout runs. Return the rollouts that are left.

        `rollout_ids` lists the owner's rollouts that this process accepted, at most MAX_LISTED.
        """
        await self._drain()
        drained = await self._engine.shutdown.drained(seconds, delivered=False)
        engine, capacity = self._engine, self._engine.capacity()
        active = capacity.running + capacity.queued
        ids, after = list[str](), 0
        while len(ids) < MAX_LISTED:
            rows, after = await self._engine.rollouts.page(owner, after, 500, newest_first=True)
            new = [row.rollout_id for row in rows if row.accept_time >= self._start_time]
            ids += new
            if not after or len(new) < len(rows):
                break
        return {
            "accepting_rollouts": False,
            "active_rollouts": active,
            "drained": drained and not active,
            "instance_id": engine.journal.journal_id,
            "process_id": engine.context.earlier_runs.process_id,
            "rollout_ids": sorted(set(ids)),
        }


class NotStarted:
    """Implements the protocol Rollouts of routes.py for an application that has not started. Refuses all rollouts."""

    def __init__(self, agent_loop: str) -> None:
        self._agent_loop = agent_loop

    async def init(self, init: InitRequest, **caller: object) -> tuple[str, Sequence[ToolDict]]:
        """Raise Unavailable."""
        self.refuse()

    @property
    def leases(self) -> Leases:
        self.refuse()

    async def cancel(self, owner: str, ids: Iterable[str] | None, prefix: str | None) -> dict[str, str]:
        self.refuse()

    async def drain(self, owner: str, seconds: float) -> dict[str, Any]:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise Unavailable, with instructions."""
        raise Unavailable("the application has not started: run it with uvicorn, or in `with TestClient(app)`")

    async def health(self) -> dict[str, Any]:
        return http_bodies.health(Capacity(max_concurrent=0, max_queued=0), [self._agent_loop], draining=False)


def tokens_of(settings: RolloutSettings) -> Tokens:
    """Return the tokens with which callers authenticate."""
    return Tokens(settings.server.tokens)


@asynccontextmanager
async def serve_http(
    server: AgentServer,
    *,
    host: str = "127.0.0.1",
    port: int = 9000,
    settings: RolloutSettings | None = None,
    lease_times: LeaseTimes | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve the legacy contracts over HTTP with the engine of a running agent server.

    While the HTTP server runs, a gRPC caller can also pass an http:// or https:// callback. HTTP uses the tokens and
    the TLS files of the agent server. If the agent server has no tokens, HTTP uses the tokens of the settings.

    If there are several workers, only worker 0 listens at the port. It forwards requests to the sockets of the others.
    """
    known, security = settings or get_settings(), server.security
    security.check_host(host)
    tls = client_context(server.credentials.tls) if server.credentials.tls else None
    async with AsyncExitStack() as stack:
        calls = await stack.enter_async_context(Calls(known.client, checked_only=True, tls=tls))
        leases = Leases(server.engine, lease_times)
        trainers = HttpTrainers(calls, server.callbacks.policy, known.client, leases)
        app = http_app("osmosis_grpc")
        http_access = HttpAccess(
            tokens=security.tokens or tokens_of(known),
            admin_tokens=security.admin_tokens,
            certificates=security.asks_certificates,
            max_metadata_bytes=server.config.max_metadata_bytes,
            loopback=server.on_loopback,
        )
        app.state.rollouts = InProcessRollouts(server.engine, trainers.peer, leases, lambda: server.order_drain(True))
        app.state.metrics = server.metrics
        leases.start()
        add_routes(app, http_access)
        add_rollout_routes(app, http_access)
        path = await _join_workers(stack, app, server, http_access)
        schemes = dict.fromkeys(("http", "https"), trainers.peer)
        server.callbacks.schemes |= schemes
        try:
            limit = server.config.max_connections or default_connections()
            listens: dict[str, Any] = {"path": path}
            if path is None:
                listens = {"host": host, "port": port, "tls": security.tls, "connections": limit}
            async with HttpServer(app, supervisor=server.supervisor, **listens) as http:
                yield http
        finally:
            for scheme in schemes:
                server.callbacks.schemes.pop(scheme, None)


@asynccontextmanager
async def serve_metrics(server: AgentServer, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HttpServer]:
    """Serve /metrics of an agent server on loopback, without authentication.

    Raises MissingExtraError if prometheus_client is not installed, and OSError if the port is taken.
    """
    importlib.import_module("osmosis_grpc.observability.exposition")
    app = http_app("osmosis_grpc", openapi_url=None)
    app.state.metrics = server.metrics
    access = HttpAccess(max_metadata_bytes=0, loopback=True)
    add_metrics(app, access)
    async with AsyncExitStack() as stack:
        await _join_workers(stack, app, server, access)
        loopback = host if is_loopback(host) else "127.0.0.1"
        http = HttpServer(app, host=loopback, port=port, connections=METRICS_CONNECTIONS)
        yield await stack.enter_async_context(http)


async def _join_workers(stack: AsyncExitStack, app: FastAPI, server: AgentServer, access: HttpAccess) -> Path | None:
    """Make the application of worker 0 answer for all workers. For another worker, return the path of its socket.

    Do nothing if the server has only one process.
    """
    if server.routes is None:
        return None
    config = server.routes.siblings.config
    if config.index:
        app.user_middleware[-1] = Middleware(SiblingGuard, secret=config.secret)
        return config.socket(config.index, KIND)
    calls = await stack.enter_async_context(WorkerCalls(config))
    app.user_middleware.append(Middleware(WorkerRoutes, routes=server.routes, calls=calls, bounds=access.bounds))
    return None
