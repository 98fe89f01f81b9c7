"""Drops settled rollouts: all that are past their time, and the oldest ones while the file is over its budget."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from osmosis_grpc.storage.journal.clock import JournalClock

SLICE = 200
"""Rollouts dropped in one transaction."""
EVENT_BYTES = 48
"""About how many bytes an event takes in the file besides its body."""
ROLLOUT_BYTES = 1024
"""About how many bytes a rollout takes in the file besides its events."""

_OLDEST = """SELECT sequence, rollout_id, attempt, positions, size FROM rollouts WHERE settled AND ended_at < ?
    ORDER BY ended_at LIMIT ?"""

log = logging.getLogger(__name__)


class Dropped(NamedTuple):
    """A rollout to delete."""

    sequence: int
    rollout_id: str
    attempt: int
    positions: bytes | None
    """Positions of its events; None if it has not ended."""
    size: int
    """Bytes of its events."""


class Retention:
    """Drops rollouts in slices. Each slice follows the commit of the one before.

    `drop` deletes rollouts; `barrier` calls its argument after the commit of the deletion. Belongs to the event loop.
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
        """Note how many bytes of the file are in use. Sweeps if they exceed the budget."""
        self._used = used
        if used > self._budget:
            self.sweep()

    def sweep(self) -> None:
        """Drop until nothing is left to drop. Leaves unreadable rows to a later sweep."""
        if self._busy or self._closed:
            return
        try:
            rows = self._slice()
        except sqlite3.Error as error:
            log.warning("the journal cannot be read: %s; no rollout is dropped", error)
            return
        if rows:
            self._busy = True
            self._drop(rows)
            self._barrier(self._committed)

    def close(self) -> None:
        """Stop dropping."""
        self._closed = True

    def _committed(self, ok: bool) -> None:
        self._busy = False
        if ok:
            self.sweep()

    def _slice(self) -> list[Dropped]:
        rows = self._oldest(self._clock.now() - self._ttl)
        beyond = self._used - self._budget - sum(map(_size, rows))
        if beyond > 0 and len(rows) < SLICE:
            for row in self._oldest(float("inf"))[len(rows) :]:
                if beyond <= 0:
                    break
                rows.append(row)
                beyond -= _size(row)
        return rows

    def _oldest(self, before: float) -> list[Dropped]:
        return [Dropped(*row) for row in self._database.execute(_OLDEST, (before, SLICE)).fetchall()]


def _size(row: Dropped) -> int:
    """Return about how many bytes of the file a rollout takes."""
    return row.size + ROLLOUT_BYTES
