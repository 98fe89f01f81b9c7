"""Reads the events of one rollout by their kinds, for commands that read many rollouts."""

import json
from array import array
from collections.abc import Sequence
from contextlib import closing

from osmosis_grpc.protocol.types import TrajectoryEvent
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import EventRow, RolloutRow

_ROW = "SELECT * FROM main.rollouts WHERE sequence = ?"
_OF_KINDS = """SELECT * FROM main.events WHERE position IN (SELECT value FROM json_each(?))
    AND (? = 0 OR kind IN (SELECT value FROM json_each(?))) ORDER BY position"""
_UNFINISHED = """SELECT sequence FROM main.rollouts WHERE NOT settled AND end_time IS NULL AND sequence >= ?
    ORDER BY sequence LIMIT ?"""


class EventReader(Reader):
    """A Reader with more ways to read a rollout.

    Its methods, open_trails() and entry() work on a connection with temporary views of the same names as tables.
    """

    def row_at(self, sequence: int) -> RolloutRow | None:
        """Return the row of a rollout, or None if there is none. Does not check it."""
        one = self._database.execute(_ROW, (sequence,)).fetchone()
        return None if one is None else RolloutRow._make(one)

    def unfinished(self, sequence: int, limit: int) -> list[int]:
        """Return the sequences of rollouts without an end, from this one on."""
        rows = self._database.execute(_UNFINISHED, (sequence, limit)).fetchall()
        return [row[0] for row in rows]

    def events_of(self, row: RolloutRow, kinds: Sequence[int]) -> tuple[list[TrajectoryEvent], bool]:
        """Return the events of an ended rollout of these kinds, or of all without `kinds`.

        Leaves damaged events out. Return also whether no event is damaged.
        """
        positions = json.dumps(array("Q", row.positions or b"").tolist())
        found: list[TrajectoryEvent] = []
        sound = True
        with closing(self._database.execute(_OF_KINDS, (positions, len(kinds), json.dumps(list(kinds))))) as rows:
            for event in map(EventRow._make, rows):
                if not event.sound:
                    sound = False
                    continue
                kind = event.read()
                found.append(TrajectoryEvent(row.rollout_id, row.attempt, event.event_number, event.time, kind))
        return found, sound
