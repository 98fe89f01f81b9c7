"""Prepares a journal that is opened: replaces lost facts, and reports the rows of rollouts that are damaged.

A damaged rollout stays damaged. If it is not settled, the engine ends it FAILED (DATA_LOSS).
"""

import logging
import sqlite3
from pathlib import Path

from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import RolloutRow
from osmosis_grpc.supervise import System

log = logging.getLogger(__name__)

_COPY = "copy of journal_id"
"""The name of the fact that repeats the journal's id. All cursors and attachments depend on this id."""


def prepare(database: sqlite3.Connection, path: Path, system: System) -> bool:
    """Make the facts, the tombstones and the rollouts usable. Return whether the journal is new.

    Raises:
        sqlite3.Error: The disk failed.
    """
    database.execute("BEGIN IMMEDIATE")
    facts = schema.JOURNAL.tables["facts"].delete_damaged(database)
    for name, *_ in facts:
        log.error("the fact %r is damaged in the journal %s and replaced", name, path)
    for _, rollout_id, *_ in schema.JOURNAL.tables["tombstones"].delete_damaged(database):
        log.error("the cancel of rollout %s is damaged in the journal %s and deleted", rollout_id, path)
    _report_damaged(database, path)
    is_new = _add_facts(database, system, lost=bool(facts))
    database.execute("COMMIT")
    return is_new


def _report_damaged(database: sqlite3.Connection, path: Path) -> None:
    """Log the damaged rows of rollouts, even if they look settled, because that column itself may be damaged.

    Their columns `positions` are cleared, because they may name the events of other rollouts.
    """
    wrong = schema.JOURNAL.tables["rollouts"].wrong
    for row in database.execute("SELECT * FROM rollouts NOT INDEXED").fetchall():
        if what := wrong(row):
            damaged = RolloutRow._make(row)
            init = Reader(database).entry(damaged, what, outcome=False).init.request
            log.error(
                "the row of rollout %s attempt %d is damaged in the journal %s: %s does not match",
                init.rollout_id,
                init.attempt,
                path,
                what,
            )
            database.execute("UPDATE rollouts SET positions = NULL WHERE sequence = ?", (damaged.sequence,))


def _add_facts(database: sqlite3.Connection, system: System, *, lost: bool) -> bool:
    """Insert missing facts that every journal needs. Return whether the journal is new."""
    facts = dict(database.execute("SELECT name, value FROM facts"))
    journal_id = facts.get("journal_id") or facts.get(_COPY) or system.new_id()
    (newest,) = database.execute("SELECT max(position) FROM events").fetchone()
    (clock,) = database.execute("SELECT max(max(accepted_at), max(coalesce(ended_at, 0.0))) FROM rollouts").fetchone()
    values = {
        "journal_id": journal_id,
        _COPY: journal_id,
        "forgotten_position": newest or 0 if lost else 0,
        "clock": clock or 0.0,
    }
    for name, value in values.items():
        if name not in facts:
            database.execute(schema.FACT, schema.fact(name, value))
    return not facts and not lost
