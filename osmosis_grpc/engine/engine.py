"""The Engine class makes the parts of the engine and connects them.

The engine does not depend on a transport. A rollout is identified by its id and its attempt. It belongs to the owner of
its Init, and other owners cannot see it. `Engine.rollouts` reads rollouts.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import EndSink, EventSink
from osmosis_grpc.agent.runnable import Runnable, as_runnable
from osmosis_grpc.engine.acceptance import Acceptance
from osmosis_grpc.engine.annotations import Annotations
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.eventlog import Then
from osmosis_grpc.engine.find_earlier_run import SUMMED
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Peer, Record, Tenant
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.engine.recovery import Recovery
from osmosis_grpc.engine.rollout_queries import Rollouts
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.shutdown import Shutdown
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.engine.watchdog import Watchdog, warn_of_stalls
from osmosis_grpc.protocol.types import CancelResult, Capacity, InitRequest, OutcomeStatus
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

SWEEP = job("engine.sweep", OnFailure.RESTART)
SUM_UP = job("engine.sum_up", OnFailure.RESTART)


class Engine:
    """Hosts agents. Use it as `async with Engine(agents, journal=MemoryJournal()) as engine`.

    `supervisor` is the server's supervisor, whose System has the clocks and makes the ids. By default, the engine makes
    its own. In both cases, the engine closes the supervisor at the end.
    """

    def __init__(
        self,
        agents: Iterable[RolloutAgentLoop | Runnable | type],
        config: EngineConfig | None = None,
        *,
        journal: Journal,
        sinks: Sequence[EventSink] = (),
        supervisor: Supervisor | None = None,
    ) -> None:
        self.config = config = config or EngineConfig()
        given = [as_runnable(agent) for agent in agents]
        runnables = {runnable.name: runnable for runnable in given}
        if len(runnables) < len(given):
            raise ValueError(f"agents need unique names: {', '.join(sorted(runnable.name for runnable in given))}")
        self.supervisor = supervisor or Supervisor("the engine")
        self.context = context = EngineContext(runnables, config, journal, sinks, self.supervisor)
        context.on_ended, context.on_delivered = self._ended, self._delivered
        self.journal = journal
        self.log = context.log
        self.log.on_failed = self._failed
        self.watchdog = Watchdog(config.blocked_after)
        self.context.blocked_at = self.watchdog.blocked_at
        self.outbox = Outbox(context)
        self.runner = Runner(context, self.outbox)
        self.rollouts = Rollouts(context)
        self.annotations = Annotations(context, self.rollouts)
        self.shutdown = Shutdown(context, self.runner, self.outbox)
        self.recovery = Recovery(context, self.runner, self.outbox)
        self.acceptance = Acceptance(context, self.runner, self.shutdown)
        context.on_parked = lambda record: self.shutdown.changed.set()
        self.end_sinks: list[EndSink] = []
        """Functions that are called with each ended rollout, after its end is committed."""
        self._completed = 0

    async def __aenter__(self) -> "Engine":
        self.supervisor.every(SWEEP, min(self.config.sweep_interval, self.config.record_ttl / 4), self._sweep)
        self.supervisor.every(SUM_UP, SUMMED, self.context.earlier_runs.report)
        self.watchdog.start(self.supervisor)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self.shutdown.close(0.0)
        finally:
            self.watchdog.stop()
            self.context.earlier_runs.report()
            self.outbox.close()
            await self.supervisor.close()

    async def init(
        self, init: InitRequest, *, owner: str, peer: Peer, original: ForkedChats | None = None
    ) -> tuple[Record, bool]:
        """Accept a rollout, or find the rollout of an equal Init (see acceptance.py).

        `original` has the recorded chats of a fork's original, if the original is not in this journal. Return the
        record, and whether this call started the rollout. Raises CallError for a refusal.
        """
        record, started = self.acceptance.begin(init, owner=owner, peer=peer, original=original)
        if not record.accepted.done():
            await asyncio.shield(record.accepted)
        record.accepted.result()
        return record, started

    def cancel(
        self,
        owner: str,
        *,
        rollout_id: str = "",
        group_id: str = "",
        rollout_id_prefix: str = "",
        attempt: int = 0,
        reason: str = "",
    ) -> list[CancelResult]:
        """Cancel one rollout, a group of rollouts, or the rollouts whose ids have a prefix.

        Without an id, a group and a prefix, cancel all rollouts of the owner.

        The cancel takes effect at once. Once `log.flush()` has returned, it also survives a crash. Raises
        ResourceExhausted if too many cancels of the owner wait for their Inits.
        """
        if not rollout_id:
            live = [r for r in self.context.table.live() if r.owner == owner]
            live.sort(key=lambda record: not record.accepted.done())  # pending ones last, as their tombstones can raise
            return [
                self._cancel(r, reason)
                for r in live
                if r.rollout_id.startswith(rollout_id_prefix)
                and (not group_id or (r.init.request.group is not None and r.init.request.group.id == group_id))
            ]
        pending = [
            r
            for r in self.context.table.pending(rollout_id)
            if r.owner == owner and r.attempt <= (attempt or r.attempt)
        ]
        known = self.context.table.accepted(rollout_id)
        if known is None or known.owner != owner:
            if not pending:
                self.context.tombstones.add(owner, rollout_id, attempt)
                return [CancelResult(rollout_id)]
            return [self._cancel(record, reason) for record in pending]
        if attempt and attempt < known.attempt:
            older = self.context.table.find(rollout_id, attempt)
            if older is None:
                return [CancelResult(rollout_id, attempt)]
            return [CancelResult(rollout_id, attempt, "ALREADY_ENDED", older.state)]
        rows = [self._cancel(record, reason) for record in [known, *pending]]
        if attempt > known.attempt and not pending:
            self.context.tombstones.add(owner, rollout_id, attempt)
        return rows

    def _cancel(self, record: Record, reason: str) -> CancelResult:
        decided = record.run.termination
        if not record.accepted.done():
            self.context.tombstones.add(record.owner, record.rollout_id, record.attempt)
            record.cancel_reason = reason
            cancelled = True
        elif decided is None and record.live:
            self.runner.cancel(record, reason)
            cancelled = True
        else:
            cancelled = record.live and decided is not None and decided.status is OutcomeStatus.CANCELLED
        if cancelled and not record.trail.journaled:  # the next process finds only the tombstone, not CancelAsked
            self.context.tombstones.add(record.owner, record.rollout_id, record.attempt)
        return CancelResult(
            record.rollout_id, record.attempt, "CANCELLED" if cancelled else "ALREADY_ENDED", record.state
        )

    def lose(self, tenant: Tenant, why: str) -> None:
        """End the unfinished rollouts of a trainer FAILED (trainer, retryable)."""
        tenant.lost = True
        for record in self.context.table.live():
            if record.tenant is tenant and record.accepted.done():
                self.runner.decide(record, Termination.trainer_lost(why))

    def lose_rollout(self, record: Record, why: str) -> None:
        """End a rollout FAILED (trainer, retryable), because its trainer has left. Do nothing if it has ended."""
        self.runner.decide(record, Termination.trainer_lost(why))

    def capacity(self) -> Capacity:
        """Return the limits, and how much of each limit is used."""
        return Capacity(
            max_concurrent=self.config.max_concurrent,
            max_queued=self.config.queue_limit,
            running=max(0, self.context.admission.running - len(self.runner.abandoned)),
            queued=self.context.admission.queued,
            abandoned=len(self.runner.abandoned),
            undelivered=self.outbox.undelivered,
            expired=self.outbox.expired,
            completed=self._completed,
        )

    def _ended(self, record: Record) -> None:
        """Tell the other parts that the end of a rollout is committed."""
        self.context.table.ended(record)
        self.recovery.passed(record.rollout_id, record.attempt)
        self.shutdown.changed.set()
        self._completed += 1
        ended = replace(record.info(), outcome=record.delivery.outcome)
        for sink in self.end_sinks:
            try:
                sink(ended)
            except Exception:
                log.exception("a sink of ended rollouts failed; the rollout has ended nevertheless")

    def _delivered(self, record: Record) -> None:
        record.delivery.settled = True
        self.outbox.delivered(record)
        self.context.table.settled(record)
        self.shutdown.changed.set()

    def _failed(self, record: Record, then: Then, error: BaseException) -> None:
        """Handle an error of `then`, which the log called after the commit of an event of the rollout."""
        if record.delivery.report is not None or record.delivery.ended is not None:  # the end is written: try again
            then(record)
        elif not record.accepted.done():
            self.acceptance.failed(record, error)
        else:
            self.runner.fail(record, error)

    async def _sweep(self) -> None:
        now = self.context.system.monotonic()
        for record in self.context.table.overdue(now):
            record.cancel_calls()
        await self.context.table.sweep(now)
        self.context.tombstones.sweep(now)
        warn_of_stalls(self.context.table.live(), now, self.config.stalled_after)
