"""The way out: no new rollouts, time for what runs, and then the end of what still lives."""

import asyncio
import logging

import anyio

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.types import FailureReason

log = logging.getLogger(__name__)

LAST_DELIVERIES = 3.5
"""Seconds after the drain limit in which the last completions may still be delivered."""


class Shutdown:
    """Draining takes no new rollouts; closing ends what there is. `durable`: whether there is a journal."""

    def __init__(self, context: EngineContext, runner: Runner, outbox: Outbox) -> None:
        self.draining = False
        """Whether new rollouts are refused."""
        self.closing = False
        """Whether everything is refused."""
        self._context = context
        self._runner = runner
        self._outbox = outbox
        self._changed = asyncio.Event()

    def drain(self) -> None:
        """Take no new rollouts from now on."""
        self.draining = True

    def end_drain(self) -> None:
        """Take new rollouts again."""
        self.draining = self.closing

    def changed(self) -> None:
        """A rollout ended, was refused, or was delivered: whoever waits looks again."""
        self._changed.set()

    async def drained(self, limit: float) -> bool:
        """Wait until everything has ended and is delivered; false when the limit came first."""
        with anyio.move_on_after(limit):
            while self._unfinished() or self._outbox.undelivered:
                self._changed.clear()
                await self._changed.wait()
            return True
        return False

    async def stop(self, limit: float) -> None:
        """Drain: what runs may finish for `limit` seconds; what does not, ends FAILED (server, retryable)."""
        self.drain()
        if limit and not await self.drained(limit):
            admission = self._context.admission
            log.warning(
                "the drain limit of %g s is over: %d running, %d queued, %d undelivered",
                limit,
                admission.running - len(self._runner.abandoned),
                admission.queued,
                self._outbox.undelivered,
            )
        await self.close(LAST_DELIVERIES if limit else 0.0)
        undelivered = self._outbox.undelivered
        if undelivered and not self._context.journal.durable:
            log.error("%d completions were not delivered and are lost with this process", undelivered)
        elif self._context.journal.durable and (self.parked or undelivered):
            log.info(
                "%d unfinished rollouts and %d undelivered completions stay in the journal",
                len(self.parked),
                undelivered,
            )

    async def close(self, limit: float) -> None:
        """End what still lives as FAILED (server, retryable), and try for `limit` seconds to deliver it.

        With a journal, what the next process can go on with stays there instead (`parked`). Agents
        are waited for as long as it takes to stop one, whatever the limit.
        """
        self.draining = self.closing = True
        for record in self._context.table.live():
            if record.accepted.done() and record.run.termination is None and not record.run.parked:
                self._end(record)
        began = self._context.clock.monotonic()
        with anyio.move_on_after(self._runner.longest_stop):
            while any(record.accepted.done() for record in self._unfinished()):
                self._changed.clear()
                await self._changed.wait()
        if limit:
            await self.drained(max(0.0, began + limit - self._context.clock.monotonic()))

    @property
    def parked(self) -> list[Record]:
        """What stays in the journal, unfinished, for the next process."""
        return [record for record in self._context.table.live() if record.run.parked]

    def _end(self, record: Record) -> None:
        goes_on = record.run.task is None or self._context.runnables[record.agent_loop].replayable
        if self._context.journal.durable and record.trail.journaled and goes_on:
            self._runner.park(record)
        else:
            why, reason = "the server shut down", FailureReason.SHUTDOWN
            shutdown = Termination.failed("server", why, retryable=True, reason=reason, finish_reason="shutdown")
            self._runner.decide(record, shutdown)

    def _unfinished(self) -> list[Record]:
        """What this process has still to do with: all that lives, and is not left to the next one."""
        return [record for record in self._context.table.live() if not record.run.parked or record.run.task is not None]
