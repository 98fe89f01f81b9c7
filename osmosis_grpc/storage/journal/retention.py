"""Which settled rollouts are dropped, and when: those past their time, and the oldest while the file is over budget."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from osmosis_grpc.storage.journal.clock import JournalClock

SLICE = 200
"""Rollouts dropped in one transaction."""
EVENT_BYTES = 48
"""What an event takes in the file beside its body, about."""
ROLLOUT_BYTES = 1024
"""What a rollout takes in the file beside its events, about."""

_OLDEST = """SELECT sequence, rollout_id, attempt, positions, size FROM rollouts WHERE settled AND ended_at < ?
    ORDER BY ended_at LIMIT ?"""

log = logging.getLogger(__name__)


class Dropped(NamedTuple):
    """A rollout to be deleted."""

    sequence: int
    rollout_id: str
    attempt: int
    positions: bytes | None
    """Of its events; None while it has not ended."""
    size: int
    """Bytes of its events."""


class Retention:
    """Drops in slices until nothing is left to drop. Each slice follows the commit of the one before.

    `drop` deletes rollouts; `barrier` calls back after the commit of that. Belongs to the event loop.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        clock: JournalClock,
        ttl: float,
        budget: int,
        drop: Callable[[Sequence[Dropped]], None],
        barrier: Callable[[Callable[[bool], None]], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._ttl = ttl
        self._budget = budget
        self._drop = drop
        self._barrier = barrier
        self._used = 0
        self._busy = False
        self._closed = False

    def measured(self, used: int) -> None:
        """Note how many bytes of the file are in use. Drops the oldest settled rollouts when it is over budget."""
        self._used = used
        if used > self._budget:
            self.sweep()

    def sweep(self) -> None:
        """Drop a slice. Rows that cannot be read are left to a later sweep."""
        if self._busy or self._closed:
            return
        try:
            rows = self._slice()
        except sqlite3.Error as error:
            log.warning("the journal cannot be read: %s; nothing is dropped", error)
            return
        if rows:
            self._busy = True
            self._drop(rows)
            self._barrier(self._committed)

    def close(self) -> None:
        """Drop nothing more."""
        self._closed = True

    def _committed(self, ok: bool) -> None:
        self._busy = False
        if ok:
            self.sweep()

    def _slice(self) -> list[Dropped]:
        rows = self._oldest(self._clock.now() - self._ttl)
        beyond = self._used - self._budget - sum(map(_room, rows))
        if beyond > 0 and len(rows) < SLICE:
            for row in self._oldest(float("inf"))[len(rows) :]:
                if beyond <= 0:
                    break
                rows.append(row)
                beyond -= _room(row)
        return rows

    def _oldest(self, before: float) -> list[Dropped]:
        return [Dropped(*row) for row in self._database.execute(_OLDEST, (before, SLICE)).fetchall()]


def _room(row: Dropped) -> int:
    """Returns how many bytes of the file a rollout takes, about."""
    return row.size + ROLLOUT_BYTES
