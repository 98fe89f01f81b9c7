"""Finds the settled rollouts to drop: all that are past their time, and the oldest ones of a file over its budget."""

import sqlite3
from contextlib import closing
from typing import NamedTuple

SLICE = 200
"""Rollouts dropped in one transaction."""
EVENT_BYTES = 48
"""About how many bytes an event takes in the file besides its body."""
ROLLOUT_BYTES = 1024
"""About how many bytes a rollout takes in the file besides its events."""

_OLDEST = """SELECT sequence, rollout_id, attempt, positions, size, ended_at FROM rollouts
    WHERE settled AND ended_at < 9e999 ORDER BY ended_at LIMIT ?"""


class Dropped(NamedTuple):
    """A rollout to delete."""

    sequence: int
    rollout_id: str
    attempt: int
    positions: bytes | None
    """Positions of its events; None if it has not ended."""
    size: int


def overdue(database: sqlite3.Connection, before: float, beyond: int) -> list[Dropped]:
    """Return up to SLICE rollouts to drop: those that ended before a time, and the oldest ones of `beyond` bytes."""
    found: list[Dropped] = []
    with closing(database.execute(_OLDEST, (SLICE,))) as rows:
        for *row, ended_at in rows:
            if ended_at >= before and beyond <= 0:
                break
            found.append(Dropped(*row))
            beyond -= found[-1].size + ROLLOUT_BYTES
    return found
