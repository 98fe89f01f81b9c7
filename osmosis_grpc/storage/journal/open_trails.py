"""Reads the events of unsettled rollouts from a journal that another process writes.

The row of a rollout lists the positions of its events only after its end. So this module searches a limited number of
positions: the newest ones, and for an older rollout those after its acceptance. The next call reads only newer events.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from osmosis_grpc.protocol.types import TrajectoryEvent
from osmosis_grpc.storage.journal.rows import EventRow

NEWEST = 100_000
"""The number of positions that are read at the end of the journal."""
FIRST = 4096
"""The number of positions that are read after the acceptance of an older rollout."""
_ACCEPTED = """SELECT sequence, rollout_id, attempt, accepted FROM main.rollouts
    WHERE sequence IN (SELECT value FROM json_each(?)) ORDER BY sequence"""
_BETWEEN = """SELECT * FROM main.events WHERE position > ? AND position <= ?
    AND sequence IN (SELECT value FROM json_each(?)) ORDER BY position"""
_TIME = "SELECT time FROM main.events WHERE position > ? ORDER BY position LIMIT 1"


class OpenTrail(NamedTuple):
    """Events of an unsettled rollout, in order."""

    events: list[TrajectoryEvent]
    read_from: float
    """All events since this time are here, in Unix seconds. 0 if all events are here."""
    after: int = 0
    """The events have positions above this one; the caller knows earlier ones. 0 if it knows none."""
    read_to: int = 0
    """The position of the newest event of the journal."""


def open_trails(
    database: sqlite3.Connection, sequences: Sequence[int], known: Mapping[int, int] | None = None
) -> dict[int, OpenTrail]:
    """Return events of unsettled rollouts, by sequence. Leaves damaged events out.

    `known` has the position up to which the caller knows the events of a sequence.
    """
    rows = database.execute(_ACCEPTED, (json.dumps(list(sequences)),)).fetchall()
    if not rows:
        return {}
    (last,) = database.execute("SELECT max(position) FROM main.events").fetchone()
    last = last or 0
    newest = max(last - NEWEST, 0)
    first = database.execute(_TIME, (newest,)).fetchone()
    found, names, spans = {}, {}, []
    for sequence, rollout_id, attempt, accepted in rows:
        after = (known or {}).get(sequence, 0)
        after = after if after >= newest else 0
        older = accepted <= newest and not after
        found[sequence] = OpenTrail([], first[0] if older and first else 0.0, after, last)
        names[sequence] = rollout_id, attempt
        if older:
            spans.append((accepted - 1, min(accepted + FIRST, newest)))
        spans.append((newest if older else after or accepted - 1, last))
    wanted = json.dumps(list(names))
    for begin, until in _joined(spans):
        with closing(database.execute(_BETWEEN, (begin, until, wanted))) as between:
            for row in map(EventRow._make, between):
                if row.sound and row.position > found[row.sequence].after:
                    event = TrajectoryEvent(*names[row.sequence], row.event_number, row.time, row.read())
                    found[row.sequence].events.append(event)
    return found


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same positions as spans that do not overlap, in order."""
    found: list[tuple[int, int]] = []
    for after, until in sorted(spans):
        if found and after <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((after, until))
    return found
