"""Runs rollouts alone whose agent may kill the server's process.

A rollout is a suspect once the process has died several times while its agent ran and got no new reply. An agent that
kills the process would otherwise do so at every start, and no other rollout would ever end.
"""

import heapq
import logging
from collections.abc import Callable

from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.record import Record
from osmosis_grpc.types import TrajectoryEvent, events

log = logging.getLogger(__name__)

SUSPECTED = 2
"""Deaths of the process after which a rollout runs alone."""
CONVICTED = 4
"""Deaths after which it does not run again: one in its first run or after a new reply, one in each of 3 more runs."""

Key = tuple[str, int]


class Suspects:
    """Starts each suspect after the rollouts before it have passed: they have got a new reply or have ended."""

    def __init__(self, event_log: EventLog, start: Callable[[Record], None]) -> None:
        self._log = event_log
        self._start = start
        self._before: set[Key] = set()
        """Running rollouts that have not passed."""
        self._waiting: list[tuple[int, int, Record]] = []

    def goes_before(self, record: Record) -> None:
        """Note a rollout that runs again and is not a suspect."""
        self._before.add((record.rollout_id, record.attempt))

    def add(self, record: Record, deaths: int) -> None:
        """Keep a suspect waiting. Suspects with fewer deaths go first."""
        log.warning(
            "the server's process died %d times while rollout %s ran without a new reply: it runs alone now",
            deaths,
            record.rollout_id,
        )
        heapq.heappush(self._waiting, (deaths, record.sequence, record))

    def begin(self) -> None:
        """Begin to start the suspects, after the last add()."""
        if self._waiting:
            self._log.add_sink(self._see)
            self._next()

    def ended(self, record: Record) -> None:
        """Note that a rollout has ended."""
        self._pass((record.rollout_id, record.attempt))

    def _see(self, event: TrajectoryEvent) -> None:
        if isinstance(event.kind, events.ChatAnswered) and not event.kind.recorded_number:
            self._pass((event.rollout_id, event.attempt))

    def _pass(self, key: Key) -> None:
        if key in self._before:
            self._before.discard(key)
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._before:
            record = heapq.heappop(self._waiting)[2]
            if record.run.termination is None and not record.run.parked:
                self._before.add((record.rollout_id, record.attempt))
                self._start(record)
        if not self._waiting:
            self._log.remove_sink(self._see)
