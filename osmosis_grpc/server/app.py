"""The agent server as a whole: engine, grpc.aio server, health, reflection, drain."""

import asyncio
import inspect
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from osmosis_grpc._gen.osmosis.rollout.v1 import services_pb2, services_pb2_grpc
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import EventSink
from osmosis_grpc.engine import Engine, EngineConfig, settled
from osmosis_grpc.link.interceptors import StatusInterceptor
from osmosis_grpc.link.listen import listen
from osmosis_grpc.link.options import server_options
from osmosis_grpc.link.targets import TargetPolicy, is_loopback
from osmosis_grpc.server.attachments import Attachments
from osmosis_grpc.server.callbacks import Callbacks
from osmosis_grpc.server.servicer import RolloutServicer
from osmosis_grpc.types import RolloutRequest, ToolDict
from osmosis_grpc.types.completion import describe
from osmosis_grpc.types.tools import tool_dicts
from osmosis_grpc.wire.rollout import MAX_METADATA_BYTES

log = logging.getLogger(__name__)

SERVICE = services_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
LIVENESS = "liveness"

_Status = health_pb2.HealthCheckResponse


class AgentServer:
    """Hosts agent loops over gRPC. Used as `async with AgentServer([loop], port=0) as server`.

    It dials out to the trainers that `connect` names, HOST:PORT each; what they start is theirs.
    Health knows three names: "" and the RolloutService are NOT_SERVING from the moment the
    server drains, "liveness" stays SERVING to the end. Raises OSError when the port is taken
    and ValueError when the host is public: there is no protection for that yet.
    """

    def __init__(
        self, agent_loops: Sequence[RolloutAgentLoop], *, host: str = "127.0.0.1", port: int = 50051,
        config: EngineConfig | None = None, allow_targets: Sequence[str] = (),
        max_metadata_bytes: int = MAX_METADATA_BYTES, sinks: Sequence[EventSink] = (),
        connect: Sequence[str] = (),
    ) -> None:  # fmt: skip
        if not is_loopback(host):
            raise ValueError(f"{host} is not loopback, and a public address needs a token or TLS")
        self.engine = Engine(agent_loops, config, sinks=sinks)
        self.port = port
        self._host = host
        self.max_metadata_bytes = max_metadata_bytes
        self.on_loopback = is_loopback(host)
        self.callbacks = Callbacks(TargetPolicy(loopback=self.on_loopback, allow=allow_targets))
        """Where rollouts' calls go, by the scheme of their callback's target."""
        self.attachments = Attachments(self.engine, max_metadata_bytes)
        """Trainers that speak over one stream."""
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server
        self._connect = list(dict.fromkeys(connect))
        self._stack = AsyncExitStack()
        self._stopped = False

    @property
    def address(self) -> str:
        """HOST:PORT, the port as bound."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def __aenter__(self) -> "AgentServer":
        self._server = grpc.aio.server(interceptors=(StatusInterceptor(),), options=server_options())
        servicer = RolloutServicer(
            self.engine, self.callbacks, self.attachments, max_metadata_bytes=self.max_metadata_bytes,
            tools={name: await _usual_tools(loop) for name, loop in self.engine.agent_loops.items()},
            on_drain=self.drain,
        )  # fmt: skip
        services_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = int(listen(self._server, self.address).rpartition(":")[2])
        await self._stack.enter_async_context(self.engine)
        await self._server.start()
        for name in ("", SERVICE, LIVENESS):
            await self._health.set(name, _Status.SERVING)
        for target in self._connect:
            self.attachments.dial(target)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            if not self._stopped:
                await self.stop(0.0)
        finally:
            await self._stack.aclose()
            await self.callbacks.close()

    async def drain(self) -> None:
        """Take no new rollouts from now on."""
        if not self.engine.draining:
            self.engine.drain()
            self.attachments.drain()
            for name in ("", SERVICE):
                await self._health.set(name, _Status.NOT_SERVING)

    async def stop(self, limit: float) -> None:
        """Drain: what runs may finish for `limit` seconds; what does not, ends FAILED (server, retryable)."""
        self._stopped = True
        await self.drain()
        await self.engine.stop(limit)
        await self.attachments.close()
        await self._server.stop(0.25)


async def _usual_tools(loop: RolloutAgentLoop) -> list[ToolDict]:
    """The tools for a request that says nothing in particular; none when the agent wants to know more."""
    if not loop.tells_tools:
        return []
    try:
        tools: Any = loop.get_tools(RolloutRequest(rollout_id="server-info"))
        if inspect.isawaitable(tools):
            task = asyncio.create_task(settled(tools))
            done, _ = await asyncio.wait({task}, timeout=2)
            if not done or task.cancelled():
                task.cancel()
                raise TimeoutError("it took longer than 2 s")
            tools, error = task.result()
            if error is not None:
                raise error
        return tool_dicts(tools)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        log.info("agent loop %s tells no tools without a request: %s", loop.name, describe(error))
        return []
