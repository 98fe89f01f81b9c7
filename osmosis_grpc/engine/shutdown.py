"""Drains and closes the engine."""

import asyncio
import logging

import anyio

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.protocol.types import FailureReason

log = logging.getLogger(__name__)

LAST_DELIVERIES = 3.5
"""When the drain limit is over, the engine waits this many more seconds for the last deliveries."""


class Shutdown:
    """Drains and closes the engine.

    During a drain, new rollouts are refused. Closing ends the unfinished rollouts, or leaves them to the next process.
    """

    def __init__(self, context: EngineContext, runner: Runner, outbox: Outbox) -> None:
        self.draining = False
        """Whether new rollouts are refused."""
        self.closing = False
        """Whether everything is refused."""
        self.restarting = False
        """Whether the next process starts soon, and continues all rollouts that it can."""
        self._context = context
        self._runner = runner
        self._outbox = outbox
        self.changed = asyncio.Event()
        """Set when a rollout ends, is refused, or is delivered."""

    def drain(self) -> None:
        """Refuse new rollouts from now on."""
        self.draining = True

    def end_drain(self) -> None:
        """Accept new rollouts again, unless the engine is closing."""
        self.draining = self.closing

    async def drained(self, limit: float, *, delivered: bool = True) -> bool:
        """Wait until all rollouts have ended, and with `delivered`, until all outcomes are delivered.

        Return False if `limit` seconds pass before that.
        """
        with anyio.move_on_after(limit):
            while self._unfinished() or (delivered and self._outbox.undelivered):
                self.changed.clear()
                await self.changed.wait()
            return True
        return False

    async def stop(self, limit: float, *, park: bool = False) -> None:
        """Drain for at most `limit` seconds, then close.

        With `park`, the next process continues all rollouts that it can, and delivers all undelivered outcomes. The
        limit then applies only to the other rollouts.
        """
        self.drain()
        self.restarting = park
        park = park and self._context.journal.durable
        if park:
            for record in self._context.table.live():
                if record.accepted.done() and record.run.termination is None and self._can_park(record):
                    self._runner.park(record)
        if limit and not await self.drained(limit, delivered=not park):
            admission = self._context.admission
            log.warning(
                "the drain limit of %g s is over: %d running, %d queued, %d undelivered",
                limit,
                admission.running - len(self._runner.abandoned),
                admission.queued,
                self._outbox.undelivered,
            )
        await self.close(LAST_DELIVERIES if limit and not park else 0.0)
        undelivered = self._outbox.undelivered
        if undelivered and not self._context.journal.durable:
            log.error("%d outcomes were not delivered and are lost with this process", undelivered)
        elif self._context.journal.durable and (self.parked or undelivered):
            log.info(
                "%d unfinished rollouts and %d undelivered outcomes stay in the journal", len(self.parked), undelivered
            )

    async def close(self, limit: float) -> None:
        """End the unfinished rollouts FAILED (server, retryable). Try for `limit` seconds to deliver their outcomes.

        If the journal is durable, rollouts that the next process can continue are parked instead. `limit` does not
        shorten the time that agents have to stop.
        """
        self.draining = self.closing = True
        for record in self._context.table.live():
            if record.accepted.done() and record.run.termination is None and not record.run.parked:
                self._end(record)
        began = self._context.system.monotonic()
        with anyio.move_on_after(self._runner.longest_stop):
            while any(record.accepted.done() for record in self._unfinished()):
                self.changed.clear()
                await self.changed.wait()
        if limit:
            await self.drained(max(0.0, began + limit - self._context.system.monotonic()))

    @property
    def parked(self) -> list[Record]:
        """The rollouts that stay unfinished in the journal for the next process."""
        return [record for record in self._context.table.live() if record.run.parked]

    def _end(self, record: Record) -> None:
        if self._can_park(record):
            self._runner.park(record)
        else:
            reason = FailureReason.SHUTDOWN
            self._runner.decide(record, Termination.server_failed(reason, "the server shut down", "shutdown"))

    def _can_park(self, record: Record) -> bool:
        can_continue = record.run.task is None or self._context.runnables[record.agent_loop].replayable
        return self._context.journal.durable and record.trail.journaled and can_continue and not record.run.parked

    def _unfinished(self) -> list[Record]:
        """Return the rollouts that this process must finish, and the parked rollouts whose agents still run."""
        return [record for record in self._context.table.live() if not record.run.parked or record.run.task is not None]
