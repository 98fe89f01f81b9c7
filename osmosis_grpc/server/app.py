"""The agent server: the engine behind a grpc.aio server, with health, reflection and drain."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

import osmosis_grpc.endpoints  # noqa: F401 # serves the base URLs of rollouts
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.runnable import Runnable, await_tools
from osmosis_grpc.engine import Engine
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.handlers import Registrar
from osmosis_grpc.network.network import GRPC, Network, start
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.observability.server_metrics import ServerMetrics
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import Capacity, ToolDict
from osmosis_grpc.protocol.types.messages import tool_dicts
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.server.attachment_registry import Attachments
from osmosis_grpc.server.callbacks import Callbacks
from osmosis_grpc.server.config import ServerConfig
from osmosis_grpc.server.servicer import Access, RolloutServicer
from osmosis_grpc.server.workers.routing import RoutedServicer, Workers
from osmosis_grpc.server.workers.sibling_server import SiblingServer
from osmosis_grpc.server.workers.siblings import Siblings, WorkersConfig
from osmosis_grpc.storage import MemoryJournal, SqliteJournal
from osmosis_grpc.supervise import SYSTEM, ForkGuard, OnFailure, Supervisor, System, job

log = logging.getLogger(__name__)

UPDATE_HEALTH = job("server.update_health", OnFailure.RESTART)
SERVE_GRPC = job("server.serve_grpc", OnFailure.FAIL_OWNER)

SERVICE = services_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
LIVENESS = "liveness"
LIST_TOOLS_TIMEOUT = 2.0
"""How many seconds GetServerInfo waits for an agent's async get_tools()."""
_Status = health_pb2.HealthCheckResponse


class AgentServer:
    """Hosts agents over gRPC. Used as `async with AgentServer([loop], port=0) as server`.

    The health service needs no token and answers for three names: "", the RolloutService, and "liveness". The first
    two are NOT_SERVING while the server drains or cannot write its journal, and after `supervisor` has failed.
    "liveness" is SERVING until the server ends.

    Args:
        agent_loops: The agents: agent loops, or classes of workflows.
        host: The address at which the server listens.
        port: Its port; 0 for a free one.
        state_dir: The folder of the journal. With a journal, the server commits a rollout before it answers the Init,
            commits the outcome before it sends it, and continues the rollouts of the previous process. Such a server
            must be constructed in the running event loop.
        connect: The addresses of trainers, each HOST:PORT. The server opens a stream to each of them, and the trainer
            owns the rollouts of its stream.
        security: The credentials that callers need.
        credentials: The token for the trainers in `connect`, and the TLS files for all trainers.
        config: Limits and times.
        workers: Set if this is a worker of a server with several.
        system: Clocks, random numbers, ids and threads. Tests replace it.

    Raises:
        JournalError: The folder cannot be used.
        Unavailable: The journal cannot be read.
        OSError: The port is taken.
        ValueError: `security` is not enough for the host, or a TLS file cannot be used.
    """

    network: Network = GRPC
    """The network of the server. A subclass can replace it."""

    def __init__(
        self,
        agent_loops: Sequence[RolloutAgentLoop | Runnable | type],
        *,
        host: str = "127.0.0.1",
        port: int = 50051,
        state_dir: Path | None = None,
        connect: Sequence[str] = (),
        security: ServerSecurity | None = None,
        credentials: Credentials | None = None,
        config: ServerConfig | None = None,
        workers: WorkersConfig | None = None,
        system: System = SYSTEM,
    ) -> None:
        self.config = config = config or ServerConfig()
        self.security = security or ServerSecurity()
        self.security.check_host(host)
        self.credentials = credentials or Credentials()
        for target in connect:
            self.credentials.check_target(target)
        self.port = port
        self._host = host
        self.on_loopback = is_loopback(host)
        self.callbacks = Callbacks(
            TargetPolicy(loopback=self.on_loopback, allow=config.allow_targets),
            authenticated=self.security.authenticates,
            tls=self.credentials.tls,
            system=system,
            network=self.network,
        )
        self.supervisor = Supervisor("the agent server", lambda error: self._set_health(), system)
        """Owns the background work. `supervisor.failure` says why the server has failed."""
        self.on_drain: Callable[[bool], None] = lambda draining: None
        """Called with True or False after an administrator has begun or ended a drain."""
        self._health = health.aio.HealthServicer()
        self._workers = workers
        self.routes: Workers | None = None
        """All workers, once a server with several workers has started."""
        self._connect = list(dict.fromkeys(connect))
        self._stack = AsyncExitStack()
        self._stopped = False
        self._journal: Journal = (
            MemoryJournal(system)
            if state_dir is None
            else SqliteJournal(
                state_dir, record_ttl=config.record_ttl, budget=config.disk_budget, supervisor=self.supervisor
            )
        )
        self._journal.on_problem = lambda problem: self._set_health()
        try:
            self.engine = Engine(agent_loops, config, journal=self._journal, supervisor=self.supervisor)
            self.attachments = Attachments(self.engine, config.max_metadata_bytes, self.network)
            self.metrics = ServerMetrics(self.engine, attached=lambda: len(self.attachments.attached))
            self.callbacks.calls = self.attachments.calls = self.metrics.made
            if config.otel:
                from osmosis_grpc.observability.spans import RolloutSpans

                RolloutSpans(self.engine, content=config.otel_content)
        except BaseException:
            self._journal.close()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT with the port that the server has bound."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def __aenter__(self) -> "AgentServer":
        self._stack.callback(self._journal.close)
        self._stack.push_async_callback(self.supervisor.close)
        try:
            self._stack.callback(ForkGuard("this AgentServer").close)
            return await self._start()
        except BaseException:
            self._stopped = True
            await self.attachments.close()
            await self._stack.aclose()
            raise

    async def _start(self) -> "AgentServer":
        self._server = self.network.server(self.config.max_connections, self.config.max_connection_age)
        tools = {name: await _default_tools(loop) for name, loop in self.engine.context.runnables.items()}

        def servicer(access: Access) -> RolloutServicer:
            return RolloutServicer(
                self.engine,
                self.callbacks,
                self.attachments,
                access,
                self.config,
                tools=tools,
                on_drain=self.order_drain,
            )

        own = servicer(self.security)
        served: Any = own
        siblings = None
        if self._workers is not None:
            siblings = SiblingServer(self._workers, self.engine, self.network)
            served = self._routed(self._workers, own)
        guard, calls = self.security.authenticator(), self.metrics.answered
        services: Any = Registrar(self._server, guard, calls, new_id=self.supervisor.system.new_id)
        services_pb2_grpc.add_RolloutServiceServicer_to_server(served, services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        if self.config.reflection:
            reflected = reflection.aio.ReflectionServicer((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME))
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, services)
        self.port = int(self.network.listen(self._server, self.address, self.security).rpartition(":")[2])
        await self._stack.enter_async_context(self.engine)
        recovered = self.engine.recovery.recover(
            lambda entry: (
                self.attachments.expect(entry.attachment_id, entry.owner)
                if entry.attachment_id
                else self.callbacks.later(entry.init)
            )
        )
        if recovered:
            summary = ", ".join(f"{count} {what}" for what, count in recovered.items())
            log.info("rollouts of the previous process: %s", summary)
        if siblings is not None:
            await siblings.start(servicer(siblings.access))
            self._stack.push_async_callback(siblings.stop)
        await start(self._server)
        self._stack.push_async_callback(self._server.stop, 0.0)
        self.supervisor.start(SERVE_GRPC, self._serve)
        await self._health.set(LIVENESS, _Status.SERVING)
        await self._update_health()
        for target in self._connect:
            self.attachments.dial(target, self.credentials)
        return self

    def _routed(self, config: WorkersConfig, own: RolloutServicer) -> RoutedServicer:
        """Return the servicer of a worker, which passes calls on to the other workers."""
        siblings = Siblings(config, self.network)
        self._stack.push_async_callback(siblings.close)
        self.attachments.workers = lambda: siblings.workers(self.engine.journal.journal_id)
        self.routes = Workers(self.engine, siblings, own, self.security)
        return RoutedServicer(self.routes)

    async def __aexit__(self, *exc: Any) -> None:
        try:
            if not self._stopped:
                await self.stop(0.0)
        finally:
            await self._stack.aclose()
            await self.callbacks.close()

    async def _serve(self) -> None:
        await self._server.wait_for_termination()
        if not self._stopped:
            raise RuntimeError("the gRPC server has stopped by itself")

    async def order_drain(self, draining: bool) -> None:
        """Begin or end a drain on an administrator's request. Raises FailedPrecondition."""
        await (self.drain() if draining else self.end_drain())
        self.on_drain(draining)

    async def drain(self) -> None:
        """Refuse new rollouts from now on."""
        if not self.engine.shutdown.draining:
            log.info("draining: no new rollouts from now on", extra=_left(self.engine.capacity()))
            self.engine.shutdown.drain()
            self.attachments.drain()
            await self._update_health()

    async def end_drain(self) -> None:
        """Accept new rollouts again, unless this worker is leaving.

        Raises FailedPrecondition if the server is stopping.
        """
        if self._stopped:
            raise FailedPrecondition("the server is stopping", kind="STOPPING")
        if self._workers is not None and self._workers.leaves:
            return
        if self.engine.shutdown.draining:
            log.info("the drain has ended: new rollouts are taken again")
            self.engine.shutdown.end_drain()
            self.attachments.grant()
            await self._update_health()

    def _set_health(self) -> None:
        """Recompute the health, after a journal problem has begun or ended or the server has failed."""
        self.supervisor.start(UPDATE_HEALTH, self._update_health)

    async def _update_health(self) -> None:
        ready = not (self.engine.shutdown.draining or self.engine.journal.problem or self.supervisor.failure)
        for name in ("", SERVICE):
            await self._health.set(name, _Status.SERVING if ready else _Status.NOT_SERVING)

    async def stop(self, limit: float, *, park: bool = False) -> None:
        """Drain, then stop.

        Rollouts unfinished by then are left to the next process if it can continue them, else FAILED and retryable.

        Args:
            limit: How many seconds the drain may take.
            park: Leave the rollouts that the next process can continue to it at once, without waiting for them.
        """
        self._stopped = True
        await self.drain()
        await self.engine.shutdown.stop(limit, park=park)
        await self.attachments.close()
        await self._server.stop(0.25)
        log.info("drained", extra=_left(self.engine.capacity()))


def _left(capacity: Capacity) -> dict[str, int]:
    return {"running": capacity.running, "queued": capacity.queued, "undelivered": capacity.undelivered}


async def _default_tools(agent: Runnable) -> list[ToolDict]:
    """Return the tools that an agent has for an empty request, or none if get_tools() needs a real request."""
    if not agent.lists_tools_without_request:
        return []
    try:
        tools: Any = agent.tools(RolloutRequest.unchecked(rollout_id="server-info"))
        if inspect.isawaitable(tools):
            tools = await await_tools(tools, LIST_TOOLS_TIMEOUT)
        return tool_dicts(tools)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # the agent's code may raise anything
        log.info("agent loop %s lists no tools without a request: %s", agent.name, describe(error))
        return []
