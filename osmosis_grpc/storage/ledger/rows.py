"""The ledger's tables. Reads and checks the rows, and repairs damaged ones when the ledger is opened.

A damaged rollout that cannot continue gets the outcome FAILED (DATA_LOSS). All other rollouts continue. Later rows
reuse the pages of deleted rows, and the file does not shrink.
"""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.wire.outcome import outcome_to_wire
from osmosis_grpc.storage.data_loss import data_loss
from osmosis_grpc.storage.sqlite.file_schema import Schema, row_sum, with_sum

log = logging.getLogger(__name__)

NOTE = "note "
"""The beginning of the server_key of a row that is no attachment, but a note of the application."""
PROCESS = f"{NOTE}osmosis_grpc.process"
"""The server_key of the note that has the number of the newest process that opened the ledger."""
LATEST = 2**32 - 2**20
"""A wall clock beyond this second is wrong, or the year is 2105. So numbers of processes stay below 2**32."""
Then = Callable[[Any, LedgerError | None], None]
"""A function that is called on the event loop with the value that was read, or with the error."""


class ChatRow(NamedTuple):
    """One row of an answered chat: a ChatRequest and its ChatResponse."""

    rollout_id: str
    attempt: int
    sample: str
    chat_number: int
    parent_chat: int
    """The number of the chat whose tokens this chat continues, or 0 if there is no such chat."""
    offered: str
    """The digest of the tools that the chat offered."""
    question: bytes
    reply: bytes


@dataclass(slots=True)
class LedgerRollout:
    """One rollout of the ledger."""

    rollout_id: str
    attempt: int
    server_key: str = ""
    """The rollout's server as "target HOST:PORT" or "journal ID". Empty before the rollout is assigned to a server."""
    affinity_key: str = ""
    init: bytes | None = None
    """An InitRequest in wire form. It is None before the rollout is assigned to a server, and after the
    confirmation."""
    tools: bytes | None = None
    """A Tools message in wire form. It is None before the answer to the Init."""
    result_id: str | None = None
    outcome: bytes | None = None
    """A RolloutOutcome as it was received. It is None before the rollout's outcome, and after the confirmation."""
    confirmed: float | None = None
    """The time of the confirmation by the wall clock, or None before the confirmation."""
    chats: list[ChatRow] = field(default_factory=list)
    reserved: float | None = None
    """The time since when the attempt is reserved for a later request, by the wall clock. None if it is not."""
    damage: str = ""
    """A description of the damage in the rollout's rows, or empty if there is no damage."""


TABLES = """
CREATE TABLE attachment (
    server_key TEXT PRIMARY KEY, attachment_id TEXT NOT NULL, journal_id TEXT NOT NULL, seen REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE rollout (
    rollout_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, server_key TEXT NOT NULL, affinity_key TEXT NOT NULL,
    init BLOB, tools BLOB, result_id TEXT, outcome BLOB, ended REAL,
    assignment_sum INTEGER NOT NULL, tools_sum INTEGER, end_sum INTEGER -- a checksum for what each statement writes
);
CREATE TABLE confirmed (
    rollout_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, result_id TEXT NOT NULL, time REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE chat (
    position INTEGER PRIMARY KEY,          -- the order of the answers
    rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, sample TEXT NOT NULL, number INTEGER NOT NULL,
    continues INTEGER NOT NULL, offered TEXT NOT NULL, question BLOB NOT NULL, reply BLOB NOT NULL,
    checksum INTEGER NOT NULL, UNIQUE (rollout_id, attempt, sample, number)
);
"""
LEDGER = Schema(
    kind="ledger",
    tables_script=TABLES,
    error=LedgerError,
    instead="another file",
    page_size=4096,
    shrinks=False,
    lock_of=lambda path: Path(f"{path}.lock"),
    pragmas=("wal_autocheckpoint = 4000",),
    sums={
        "rollout": {
            "assignment_sum": ("rollout_id", "attempt", "server_key", "affinity_key", "init"),
            "tools_sum": ("rollout_id", "attempt", "tools"),
            "end_sum": ("rollout_id", "attempt", "result_id", "outcome", "ended"),
        }
    },
)


_QUARANTINE = """
UPDATE rollout SET attempt = ?, server_key = '', affinity_key = '', init = NULL, tools = NULL, tools_sum = NULL,
    assignment_sum = ?, result_id = ?, outcome = ?, ended = ?, end_sum = ? WHERE rollout_id IS ?
"""
_SEND_AGAIN = """
UPDATE rollout SET tools = NULL, tools_sum = NULL
WHERE result_id IS NULL AND server_key NOT IN (SELECT server_key FROM attachment)
"""


@dataclass(slots=True)
class Found:
    """The content of a ledger when it is opened."""

    rollouts: list[LedgerRollout]
    attachments: dict[str, tuple[str, str]]
    """Attachment id and journal id, by server_key."""
    last_position: int
    """The position of the newest chat."""
    process_number: int
    """Rises with each process that opens the ledger. Below 2**32."""


def end_sum(rollout_id: str, attempt: int, result_id: str | None, outcome: bytes | None, ended: float) -> int:
    """Return the checksum of the columns that an outcome or a reservation writes."""
    return row_sum(b"rollout.end_sum", (rollout_id, attempt, result_id, outcome, ended))


def read_rollout(connection: sqlite3.Connection, rollout_id: str) -> LedgerRollout | None:
    """Return a rollout with its chats, or None if there is no such rollout."""
    row = connection.execute("SELECT * FROM rollout WHERE rollout_id = ?", (rollout_id,)).fetchone()
    if row is None:
        return None
    kept = LedgerRollout(*row[:8])
    if why := LEDGER.tables["rollout"].wrong(row):
        kept.damage = f"{why} does not match in its row of rollout"
    chats = "SELECT * FROM chat WHERE rollout_id = ? AND attempt = ? ORDER BY position"
    for chat in connection.execute(chats, (rollout_id, row[1])):
        kept.chats.append(ChatRow._make(chat[1:9]))
        if not kept.damage and LEDGER.tables["chat"].wrong(chat):
            kept.damage = f"chat {chat[4]} of sample {chat[3]} (row {chat[0]}) does not match its checksum"
    return kept


def restore(connection: sqlite3.Connection, path: Path, ttl: float, now: float) -> Found:
    """Delete old rows, repair damaged rows, and return the content of the ledger. `now` is in Unix seconds."""
    old = now - ttl
    connection.execute("BEGIN IMMEDIATE")
    _mend(connection, path, now)
    connection.execute("DELETE FROM confirmed WHERE time < ?", (old,))
    connection.execute(
        "DELETE FROM attachment WHERE seen < ? AND server_key NOT IN (SELECT server_key FROM rollout) "
        "AND substr(server_key, 1, ?) != ?",
        (old, len(NOTE), NOTE),
    )
    running = _running(connection, path, now, old)
    connection.execute("DELETE FROM chat WHERE (rollout_id, attempt) NOT IN (SELECT rollout_id, attempt FROM rollout)")
    ended = _ended(connection, now)
    process_number = _next_process(connection, now)
    connection.execute("COMMIT")
    done = connection.execute("SELECT rollout_id, attempt, result_id, time FROM confirmed")
    confirmed = [LedgerRollout(name, n, result_id=result, confirmed=at) for name, n, result, at in done]
    attachments = {
        server_key: (id_, journal)
        for server_key, id_, journal in connection.execute(
            "SELECT server_key, attachment_id, journal_id FROM attachment"
        )
    }
    (last,) = connection.execute("SELECT max(position) FROM chat").fetchone()
    return Found([*confirmed, *running, *ended], attachments, last or 0, process_number)


def _mend(connection: sqlite3.Connection, path: Path, now: float) -> None:
    """Delete damaged attachments, and repair damaged rows of confirmed rollouts. These rollouts stay confirmed.

    The rollouts of a deleted attachment are sent again, so that their server reports their ends to the new attachment.
    """
    for server_key, *_ in LEDGER.tables["attachment"].delete_damaged(connection):
        log.error("the attachment at %r is damaged in the ledger %s and replaced", server_key, path)
        connection.execute(_SEND_AGAIN)
    for rollout_id, attempt, result_id, *_ in LEDGER.tables["confirmed"].delete_damaged(connection):
        log.error("the confirmed rollout %s is damaged in the ledger %s; it stays confirmed", rollout_id, path)
        name = str(rollout_id), attempt if isinstance(attempt, int) else 1, str(result_id)
        values = with_sum(b"confirmed.checksum", (*name, now))
        connection.execute("INSERT OR IGNORE INTO confirmed VALUES (?, ?, ?, ?, ?)", values)


def _next_process(connection: sqlite3.Connection, now: float) -> int:
    """Record and return the number of this process, which is higher than those of all earlier processes.

    It is the time in Unix seconds, unless an earlier process has this number or a higher one. So it also rises if the
    row was damaged, or if the ledger is a backup that lacks the newest processes; then only the clock must be right.
    """
    kept = connection.execute("SELECT journal_id FROM attachment WHERE server_key = ?", (PROCESS,)).fetchone()
    newest = int(kept[0]) if kept and kept[0].isdecimal() else 0
    number = max(newest + 1, min(int(now), LATEST))
    row = with_sum(b"attachment.checksum", (PROCESS, "", str(number), now))
    connection.execute("INSERT OR REPLACE INTO attachment VALUES (?, ?, ?, ?, ?)", row)
    return number


def _running(connection: sqlite3.Connection, path: Path, now: float, old: float) -> list[LedgerRollout]:
    """Return the unfinished rollouts with their chats, and the reserved attempts.

    Ends damaged rollouts, and deletes attempts that were reserved before `old`.
    """
    found: dict[str, LedgerRollout] = {}
    for row in connection.execute("SELECT * FROM rollout WHERE result_id IS NULL ORDER BY rowid").fetchall():
        why = LEDGER.tables["rollout"].wrong(row)
        if why == "tools_sum":  # the trainer asks for the tools again
            log.error("the tools of rollout %s are damaged in the ledger %s; they are asked for again", row[0], path)
            connection.execute("UPDATE rollout SET tools = NULL, tools_sum = NULL WHERE rollout_id = ?", row[:1])
            row = (*row[:5], None, *row[6:])
        elif why:
            log.error(
                "rollout %s is damaged in the ledger %s: %s does not match; it ends FAILED (DATA_LOSS)",
                row[0],
                path,
                why,
            )
            _quarantine(connection, row, now, f"{why} does not match in its row of rollout")
            continue
        reserved = row[8]
        if reserved is not None and reserved < old:
            connection.execute("DELETE FROM rollout WHERE rollout_id = ?", row[:1])
            continue
        kept = found[row[0]] = LedgerRollout(*row[:8])
        kept.reserved = reserved
    chats = connection.execute(
        "SELECT chat.* FROM chat JOIN rollout USING (rollout_id, attempt) WHERE result_id IS NULL ORDER BY position"
    ).fetchall()
    cut: dict[str, int] = {}
    """The position of the first damaged chat, by rollout. The trainer reads the deleted chats from server events."""
    for chat in chats:
        name = chat[1]
        if name not in cut and LEDGER.tables["chat"].wrong(chat):
            log.error(
                "chat %s of rollout %s is damaged in the ledger %s; it and later chats are deleted", chat[4], name, path
            )
            cut[name] = chat[0]
        if name not in cut and name in found:
            found[name].chats.append(ChatRow._make(chat[1:9]))
    for name, position in cut.items():
        connection.execute("DELETE FROM chat WHERE rollout_id = ? AND position >= ?", (name, position))
    return list(found.values())


def _ended(connection: sqlite3.Connection, now: float) -> list[LedgerRollout]:
    """Return the rollouts that have an unconfirmed outcome, but leave the outcomes out.

    `read_rollout` checks the rows later.
    """
    query = "SELECT rollout_id, attempt, result_id FROM rollout WHERE result_id IS NOT NULL ORDER BY ended, rowid"
    found = []
    for name, attempt, result in connection.execute(query).fetchall():
        if not (isinstance(attempt, int) and isinstance(result, str)):
            _quarantine(connection, (name, attempt), now, "its attempt or its result has another type")
            attempt, result = connection.execute(
                "SELECT attempt, result_id FROM rollout WHERE rollout_id IS ?", (name,)
            ).fetchone()
        found.append(LedgerRollout(name, attempt, result_id=result))
    return found


def _quarantine(connection: sqlite3.Connection, row: Sequence[Any], now: float, damage: str) -> None:
    """Give a damaged rollout the outcome FAILED (DATA_LOSS). This outcome is confirmed like every other outcome."""
    rollout_id, attempt = str(row[0]), row[1] if isinstance(row[1], int) else 1
    outcome = data_loss("ledger", rollout_id, attempt, damage)
    data = outcome_to_wire(outcome).SerializeToString()
    end = outcome.result_id, data, now
    assignment_sum = row_sum(b"rollout.assignment_sum", (rollout_id, attempt, "", "", None))
    values = attempt, assignment_sum, *end, end_sum(rollout_id, attempt, *end), row[0]
    connection.execute(_QUARANTINE, values)
