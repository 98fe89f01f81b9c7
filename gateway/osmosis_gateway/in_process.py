"""Starts rollouts for the HTTP routes on an engine in this process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from osmosis_gateway import http_bodies
from osmosis_grpc.engine import Engine, Peer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Capacity, InitRequest, ToolDict


class InProcessRollouts:
    """Implements the routes' port Rollouts with an engine. `peer` makes the Peer that receives a rollout's calls."""

    def __init__(self, engine: Engine, peer: Callable[..., Awaitable[Peer]]) -> None:
        self._engine = engine
        self._peer = peer

    async def init(
        self, init: InitRequest, *, owner: str, authenticated: bool, loopback: bool
    ) -> tuple[str, Sequence[ToolDict]]:
        peer = await self._peer(init, field="server_url", authenticated=authenticated, loopback=loopback)
        record, started = await self._engine.init(init, owner=owner, peer=peer)
        delivery, process = record.delivery, self._engine.context.earlier_runs.process_id
        if delivery.outcome is not None and not started:
            other_trainer, restarted = record.init is init, delivery.ended_by.process_id != process
            if other_trainer or restarted:  # the same trainer in the same process has got the outcome
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


class NotStarted:
    """Implements the routes' port Rollouts for an application whose lifespan has not begun. It starts no rollout."""

    def __init__(self, agent_loop: str) -> None:
        self._agent_loop = agent_loop

    async def init(self, init: InitRequest, **caller: object) -> tuple[str, Sequence[ToolDict]]:
        """Raise Unavailable."""
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise Unavailable, with what to do."""
        raise Unavailable("the application has not started: run it with uvicorn, or in `with TestClient(app)`")

    async def health(self) -> dict[str, Any]:
        return http_bodies.health(Capacity(max_concurrent=0, max_queued=0), [self._agent_loop], draining=False)
