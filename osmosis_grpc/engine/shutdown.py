"""The way out: no new rollouts, time for what runs, and then the end of what still lives."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import anyio

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import Clock
from osmosis_grpc.engine import verdicts
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.table import RecordTable
from osmosis_grpc.types import Capacity, FailureReason

log = logging.getLogger(__name__)

LAST_DELIVERIES = 3.5
"""Seconds after the drain limit in which the last completions may still be delivered."""


class Shutdown:
    """Draining takes no new rollouts; closing ends what there is. `durable`: whether there is a journal."""

    def __init__(
        self,
        agent_loops: Mapping[str, RolloutAgentLoop],
        durable: bool,
        table: RecordTable,
        runner: Runner,
        outbox: Outbox,
        clock: Clock,
        capacity: Callable[[], Capacity],
    ) -> None:
        self.draining = False
        """Whether new rollouts are refused."""
        self.closing = False
        """Whether nothing at all is taken any more."""
        self._agent_loops = agent_loops
        self._durable = durable
        self._table = table
        self._runner = runner
        self._outbox = outbox
        self._clock = clock
        self._capacity = capacity
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
            left = self._capacity()
            log.warning(
                "the drain limit of %g s is over: %d running, %d queued, %d undelivered",
                limit,
                left.running,
                left.queued,
                left.undelivered,
            )
        await self.close(LAST_DELIVERIES if limit else 0.0)
        undelivered = self._outbox.undelivered
        if undelivered and not self._durable:
            log.error("%d completions were not delivered and are lost with this process", undelivered)
        elif self._durable and (self.parked or undelivered):
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
        for record in self._table.live():
            if record.accepted.done() and record.verdict is None and not record.parked:
                self._end(record)
        began = self._clock.monotonic()
        with anyio.move_on_after(self._runner.longest_stop):
            while any(record.accepted.done() for record in self._unfinished()):
                self._changed.clear()
                await self._changed.wait()
        if limit:
            await self.drained(max(0.0, began + limit - self._clock.monotonic()))

    @property
    def parked(self) -> list[Record]:
        """What stays in the journal, unfinished, for the next process."""
        return [record for record in self._table.live() if record.parked]

    def _end(self, record: Record) -> None:
        goes_on = record.task is None or self._agent_loops[record.agent_loop].replayable
        if self._durable and record.journaled and goes_on:
            self._runner.park(record)
        else:
            why, reason = "the server shut down", FailureReason.SHUTDOWN
            shutdown = verdicts.failed("server", why, retryable=True, reason=reason, finish_reason="shutdown")
            self._runner.decide(record, shutdown)

    def _unfinished(self) -> list[Record]:
        """What this process has still to do with: all that lives, and is not left to the next one."""
        return [record for record in self._table.live() if not record.parked or record.task is not None]
