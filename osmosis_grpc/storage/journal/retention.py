"""Deletes settled rollouts: those that are too old, and the oldest ones while the file is over its budget."""

import json
import logging
import sqlite3
from array import array
from collections.abc import Callable, Sequence

from osmosis_grpc.storage.journal.open_rollouts import OpenRollouts
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import Dropped
from osmosis_grpc.storage.journal.writer import Row, Writer

log = logging.getLogger(__name__)

_DELETE_EVENTS = """DELETE FROM events WHERE position IN (SELECT value FROM json_each(?))
    AND sequence IN (SELECT value FROM json_each(?))"""
_DELETE_ALL_EVENTS = "DELETE FROM events WHERE sequence = ?"
_DELETE_ROLLOUTS = "DELETE FROM rollouts WHERE sequence IN (SELECT value FROM json_each(?))"

OnDrop = Callable[[Sequence[str], int], None]
"""Called with the ids of rollouts whose deletion begins, and the highest position of their events; 0 if unknown."""


class Retention:
    """Deletes rollouts in slices, one slice in a transaction.

    `now` returns the journal's time. A rollout is too old `ttl` seconds after its end. `budget` is the number of bytes
    of the file that may be in use.
    """

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        open_rollouts: OpenRollouts,
        *,
        ttl: float,
        budget: int,
        now: Callable[[], float],
        on_drop: OnDrop,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._open = open_rollouts
        self._ttl = ttl
        self._budget = budget
        self._now = now
        self._on_drop = on_drop
        self._dropping: dict[int, str] = {}
        """The ids of the rollouts whose deletion is not committed yet, by sequence."""
        self._used = 0
        """Bytes of the file that are in use."""
        self._sweeping = self._closed = False

    def is_dropping(self, rollout_id: str) -> bool:
        """Return whether the deletion of a rollout is not committed yet."""
        return rollout_id in self._dropping.values()

    def measured(self, used: int) -> None:
        """Record how many bytes of the file are in use. If they exceed the budget, delete rollouts."""
        self._used = used
        if used > self._budget:
            self.sweep()

    def sweep(self) -> None:
        """Drop a slice of the overdue rollouts. After the commit, drop the next slice, until no rollout is overdue.

        If the journal cannot be read, a later sweep drops the rollouts.
        """
        if self._sweeping or self._closed:
            return
        try:
            found = self._reader.overdue(self._now() - self._ttl, self._used - self._budget)
        except sqlite3.Error as error:
            log.warning("the journal cannot be read: %s; no rollout is dropped", error)
            return
        rows = [row for row in found if (row.rollout_id, row.attempt) not in self._open.by_key]
        if rows:
            self._sweeping = True
            self.drop(rows)
            self._writer.batch().barriers.append(self._swept)

    def _swept(self, ok: bool) -> None:
        self._sweeping = False
        if ok:
            self.sweep()

    def drop(self, rows: Sequence[Dropped]) -> None:
        """Delete rollouts. The file shrinks later than the commit."""
        rows = [row for row in rows if row.sequence not in self._dropping]
        if not rows:
            return
        self._dropping |= {row.sequence: row.rollout_id for row in rows}
        batch = self._writer.batch()
        statements, position = deletion(rows)
        batch.statements += statements
        batch.after.append(lambda: self._dropped([row.sequence for row in rows]))
        batch.shrinks = True
        self._on_drop([row.rollout_id for row in rows], position)

    def _dropped(self, sequences: Sequence[int]) -> None:
        """Record that a deletion is committed. Called on the writer's thread."""
        for sequence in sequences:
            self._dropping.pop(sequence, None)

    def failed(self) -> None:
        """Record that the disk failed. The rows may still be in the file, so the next sweep drops them again."""
        self._dropping.clear()

    def close(self) -> None:
        """Begin no further deletion."""
        self._closed = True


def deletion(rows: Sequence[Dropped]) -> tuple[list[tuple[str, Row]], int]:
    """Return the statements that delete rollouts, and the highest position of their events; 0 if unknown."""
    positions = array("Q")
    statements: list[tuple[str, Row]] = []
    for row in rows:
        if row.positions is None:
            statements.append((_DELETE_ALL_EVENTS, (row.sequence,)))
        else:
            positions.frombytes(row.positions)
    sequences = json.dumps([row.sequence for row in rows])
    statements += [(_DELETE_EVENTS, (json.dumps(positions.tolist()), sequences)), (_DELETE_ROLLOUTS, (sequences,))]
    return statements, max(positions, default=0)
