"""Cancels the rollouts of an engine in this process, and drains it, for the routes of 0.3.3."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from osmosis_grpc.engine import Engine
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.types import RolloutState

MAX_LISTED = 10_000
"""The answer to a drain names at most this many rollouts of the process."""


class Lifecycle:
    """The lifecycle of one engine. `drain` begins a drain."""

    def __init__(self, engine: Engine, drain: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._drain = drain
        self._start_time = engine.context.system.time()

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
