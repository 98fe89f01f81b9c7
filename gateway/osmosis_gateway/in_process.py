"""Starts, cancels and drains rollouts for the HTTP routes, on an engine in this process."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn

from osmosis_gateway import http_bodies
from osmosis_gateway.leases import Leases
from osmosis_grpc.engine import Engine, Peer
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Capacity, InitRequest, RolloutState, ToolDict

MAX_LISTED = 10_000
"""The answer to a drain names at most this many rollouts of the process."""


class InProcessRollouts:
    """Implements the routes' port Rollouts with an engine.

    Args:
        engine: The engine.
        peer: Makes the Peer that receives a rollout's calls.
        leases: The leases of the engine's rollouts.
        drain: Begins a drain.
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

    async def cancel(self, owner: str, ids: Iterable[str] | None, prefix: str | None) -> dict[str, str]:
        """Cancel rollouts by their ids, by the beginning of their ids, or all of the owner. Return what was done.

        After the return, the cancel survives a crash.
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
        """Begin a drain, and wait at most `seconds` until no rollout runs. Return what is left.

        `rollout_ids` has the owner's rollouts that this process accepted, at most MAX_LISTED.
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
    """Implements the routes' port Rollouts for an application whose lifespan has not begun. It starts no rollout."""

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
        """Raise Unavailable, with what to do."""
        raise Unavailable("the application has not started: run it with uvicorn, or in `with TestClient(app)`")

    async def health(self) -> dict[str, Any]:
        return http_bodies.health(Capacity(max_concurrent=0, max_queued=0), [self._agent_loop], draining=False)
