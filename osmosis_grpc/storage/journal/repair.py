"""Repairs damaged rows when a journal is opened, and logs each repair.

The columns with the ids and the end of a rollout repeat values of its events. A repair computes these columns from the
events again. A damaged number of deaths becomes 0. A rollout with other damage stays damaged.
"""

import logging
import sqlite3
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.open_rollouts import End
from osmosis_grpc.storage.journal.rows import EventRow, RolloutRow, Trail
from osmosis_grpc.storage.sqlite.checksum import with_sum
from osmosis_grpc.supervise import System

log = logging.getLogger(__name__)

_END = """UPDATE rollouts SET state = ?, start_time = ?, end_time = ?, ended = ?, ended_at = ?, reward = ?,
    failure_reason = ?, failure_summary = ?, chats = ?, response_tokens = ?, prompt_tokens = ?, finish_reason = ?,
    positions = ?, last_event_number = ?, size = ?, settled = ?, end_sum = ? WHERE sequence = ?"""
_COPY = "copy of journal_id"
"""The name of the fact that repeats the journal's id. All cursors and attachments depend on this id."""


def mend(database: sqlite3.Connection, path: Path, system: System) -> bool:
    """Repair the facts, the tombstones and the rollouts. Returns whether the journal is new. Raises sqlite3.Error."""
    database.execute("BEGIN IMMEDIATE")
    facts = schema.JOURNAL.tables["facts"].delete_damaged(database)
    for name, *_ in facts:
        log.error("the fact %r is damaged in the journal %s and replaced", name, path)
    for _, rollout_id, *_ in schema.JOURNAL.tables["tombstones"].delete_damaged(database):
        log.error("the cancel of rollout %s is damaged in the journal %s and deleted", rollout_id, path)
    rollouts = schema.JOURNAL.tables["rollouts"]
    for found in database.execute("SELECT * FROM rollouts NOT INDEXED").fetchall():
        if not rollouts.wrong(found):  # nearly every row
            continue
        row = RolloutRow._make(found)
        wrong = row.wrong()
        if wrong.startswith("accept_sum"):
            row = _name(database, row)
            if wrong != row.wrong():
                _repaired("its ids are repaired from its first event", row, path)
            wrong = row.wrong()
        if wrong.startswith("deaths_sum"):
            values = 0, schema.deaths_sum(row.sequence, 0), row.sequence
            database.execute("UPDATE rollouts SET deaths = ?, deaths_sum = ? WHERE sequence = ?", values)
            _repaired("its number of deaths is 0 now", row, path)
        elif wrong.startswith("end_sum") and _remake(database, row):
            _repaired("it is repaired from its events", row, path)
        elif wrong.startswith("end_sum"):  # the positions are perhaps wrong, and the reader finds events without them
            database.execute("UPDATE rollouts SET positions = NULL WHERE sequence = ?", (row.sequence,))
        elif wrong and row.settled:
            log.error("the settled rollout %s is damaged in the journal %s: %s", row.rollout_id, path, wrong)
    made = _defaults(database, system, lost=bool(facts))
    database.execute("COMMIT")
    return made


def _repaired(what: str, row: RolloutRow, path: Path) -> None:
    log.error("the row of rollout %s was damaged in the journal %s; %s", row.rollout_id, path, what)


def _defaults(database: sqlite3.Connection, system: System, *, lost: bool) -> bool:
    """Insert missing facts that every journal needs. Returns whether the journal is new."""
    known = dict(database.execute("SELECT name, value FROM facts"))
    journal_id = known.get("journal_id") or known.get(_COPY) or system.new_id()
    (newest,) = database.execute("SELECT max(position) FROM events").fetchone()
    (clock,) = database.execute("SELECT max(max(accepted_at), max(coalesce(ended_at, 0.0))) FROM rollouts").fetchone()
    values = {
        "journal_id": journal_id,
        _COPY: journal_id,
        "forgotten_position": newest or 0 if lost else 0,
        "clock": clock or 0.0,
    }
    for name, value in values.items():
        if name not in known:
            database.execute(schema.FACT, schema.fact(name, value))
    return not known and not lost


def _name(database: sqlite3.Connection, row: RolloutRow) -> RolloutRow:
    """Write the ids in a rollout's first event to its row. Returns the new row, or the old row if this fails."""
    found = database.execute("SELECT * FROM events WHERE position IS ?", (row.accepted,)).fetchone()
    event = EventRow._make(found) if found is not None else None
    kind = event.read() if event is not None and event.sequence == row.sequence and event.sound else None
    if not isinstance(kind, events.Accepted):
        return row
    request = kind.init.request
    ids = request.rollout_id, request.attempt, request.idempotency_key
    statement = "UPDATE OR IGNORE rollouts SET rollout_id = ?, attempt = ?, idempotency_key = ? WHERE sequence = ?"
    if not database.execute(statement, (*ids, row.sequence)).rowcount:
        return row
    return row._replace(rollout_id=request.rollout_id, attempt=request.attempt, idempotency_key=request.idempotency_key)


def _remake(database: sqlite3.Connection, row: RolloutRow) -> bool:
    """Compute the columns about a rollout's end from its events, and write them.

    Returns False, and writes nothing, if an event is damaged or missing.
    """
    trail = Trail()
    start_time: float | None = None
    end, settled = End(), False
    found = database.execute(
        "SELECT * FROM events WHERE sequence = ? AND position >= ? ORDER BY position", (row.sequence, row.accepted)
    )
    for event in map(EventRow._make, found.fetchall()):
        trail.add(event)
        kind = event.read() if event.sound else None
        if isinstance(kind, events.Started):
            start_time = event.time
        elif isinstance(kind, events.Ended):
            end = End.of(
                kind.outcome, start_time=start_time, end_time=event.time, ended=event.position, ended_at=row.accepted_at
            )
            superseded = (kind.outcome.status, kind.outcome.finish_reason)
            settled = superseded == (OutcomeStatus.CANCELLED, "superseded")
        settled = settled or isinstance(kind, events.Delivered)
    if trail.wrong(row._replace(positions=None, ended=None)):
        return False
    written: tuple[Any, ...] = None, 1, 0, int(settled)
    if end.ended is not None:
        (clock,) = database.execute("SELECT value FROM facts WHERE name = 'clock'").fetchone() or (row.accepted_at,)
        end = end._replace(ended_at=max(float(clock), row.accepted_at))
        written = trail.positions.tobytes(), len(trail.positions), trail.size, int(settled)
    _, *values = with_sum(b"rollouts.end_sum", (row.sequence, *end, *written))
    database.execute(_END, (*values, row.sequence))
    return True
