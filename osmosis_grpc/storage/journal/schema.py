"""The journal's tables, their checksums, the statements that write many rows at once, and the query of a list.

The query of a list reads an index that has all columns of the filter. So its time grows with the number of rollouts,
but not with their size, and it is short for every filter. It reads the rows that it returns, and no other rows.
"""

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from osmosis_grpc.protocol.errors import DataLoss
from osmosis_grpc.storage.sqlite.file_schema import Schema, row_sum, with_sum

if TYPE_CHECKING:
    from osmosis_grpc.protocol.types import RolloutFilter


class JournalError(Exception):
    """The journal cannot be opened. The message has the reason."""


class Damaged(DataLoss):
    """The checksum of a row does not match, or the row is missing."""


TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value, checksum INTEGER NOT NULL);

CREATE TABLE rollouts (
    sequence INTEGER PRIMARY KEY,          -- the order of acceptance
    rollout_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    owner TEXT NOT NULL,
    attachment_id TEXT NOT NULL,           -- where its calls go; empty for a callback
    callback BLOB,                         -- in wire form, without secrets; NULL for an attachment
    group_id TEXT,                         -- of its request
    forked_from TEXT,                      -- the id of the rollout that it forks from, if it is a fork
    agent_loop TEXT NOT NULL,
    idempotency_key TEXT,
    digest BLOB NOT NULL,
    accept_time REAL NOT NULL,
    start_time REAL,
    end_time REAL,
    state TEXT NOT NULL,
    reward REAL,                           -- this and the next six are those of OutcomeSummary, once it has ended
    failure_reason TEXT,
    failure_summary TEXT,
    chats INTEGER,
    response_tokens INTEGER,
    prompt_tokens INTEGER,
    finish_reason TEXT,
    accepted INTEGER NOT NULL,             -- positions of these two events
    ended INTEGER,
    positions BLOB,                        -- of all its events, once it has ended: 8 bytes each, little-endian
    last_event_number INTEGER NOT NULL,
    size INTEGER NOT NULL,                 -- bytes of its events
    settled INTEGER NOT NULL,
    accepted_at REAL NOT NULL,             -- these two by the journal's clock, see SqliteJournal
    ended_at REAL,
    deaths INTEGER NOT NULL,               -- of the server's process while its agent ran, since its last new reply
    accept_sum INTEGER NOT NULL,           -- the checksum of what is known from its acceptance on
    end_sum INTEGER NOT NULL,              -- of what is written at its end
    deaths_sum INTEGER NOT NULL,
    UNIQUE (rollout_id, attempt)
);
CREATE INDEX rollouts_by_key ON rollouts (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX rollouts_unsettled ON rollouts (sequence) WHERE NOT settled;
CREATE INDEX rollouts_by_end ON rollouts (ended_at) WHERE settled;
CREATE INDEX rollouts_listed ON rollouts   -- a list with any filter reads this index, and then only the rows it returns
    (sequence, owner, state, agent_loop, group_id, forked_from, failure_reason, finish_reason, reward, accept_time,
    settled)
    WHERE settled;

CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,             -- the rollout
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    kind INTEGER NOT NULL,                 -- the field of TrajectoryEvent that it is
    body BLOB NOT NULL,                    -- what that field holds, in wire form
    checksum INTEGER NOT NULL
);

CREATE TABLE tombstones (
    owner TEXT, rollout_id TEXT, attempt INTEGER NOT NULL,
    until REAL NOT NULL,                   -- by the journal's clock
    checksum INTEGER NOT NULL, PRIMARY KEY (owner, rollout_id)
);
"""
_ACCEPTED = (
    "sequence",
    "rollout_id",
    "attempt",
    "owner",
    "attachment_id",
    "callback",
    "group_id",
    "forked_from",
    "agent_loop",
    "idempotency_key",
    "digest",
    "accept_time",
    "accepted",
    "accepted_at",
)
_END = (
    "sequence",
    "state",
    "start_time",
    "end_time",
    "ended",
    "ended_at",
    "reward",
    "failure_reason",
    "failure_summary",
    "chats",
    "response_tokens",
    "prompt_tokens",
    "finish_reason",
    "positions",
    "last_event_number",
    "size",
    "settled",
)


_BEGINNING = ("accept_sum", "state", "last_event_number", "size", "settled", "end_sum", "deaths", "deaths_sum")
_NUMBERED = ", ".join(f"{column} = v.column{number}" for number, column in enumerate((*_END[1:], "end_sum"), 2))
ACCEPT = f"INSERT INTO rollouts ({', '.join(_ACCEPTED + _BEGINNING)}) VALUES {{rows}}"  # noqa: S608
EVENT = "INSERT INTO events VALUES {rows}"
END = f"UPDATE rollouts SET {_NUMBERED} FROM (VALUES {{rows}}) AS v WHERE sequence = v.column1"  # noqa: S608
SETTLE = """UPDATE rollouts SET settled = 1, positions = v.column2, last_event_number = v.column3, size = v.column4,
    end_sum = v.column5 FROM (VALUES {rows}) AS v WHERE sequence = v.column1"""
ANNOTATE = f"{END} -- again"
"""Writes the row of an ended rollout again. A batch has at most one such row for each rollout."""
CALLBACK = 5
"""The index of the callback in a row of ACCEPT."""
SEQUENCES = {ACCEPT: 0, EVENT: 1, END: 0, SETTLE: 0, ANNOTATE: 0}
"""The statements that write many rows, in the order of a rollout's life. The value is the index of the sequence in a
row."""


def _clean(database: sqlite3.Connection) -> list[str]:
    """Delete the events of each rollout that has no row. Return the names of these rollouts."""
    from osmosis_grpc.protocol.types import (
        events,  # the supervisor of several workers needs this module without protobuf
    )
    from osmosis_grpc.protocol.wire.event import kind_from_bytes

    orphans = "FROM events WHERE sequence NOT IN (SELECT sequence FROM rollouts)"
    names = []
    for kind, body in database.execute(f"SELECT kind, body {orphans} AND number = 1").fetchall():
        with suppress(Exception):  # the event is damaged, too
            first = kind_from_bytes(kind, body)
            assert isinstance(first, events.Accepted)
            names.append(f"rollout {first.init.request.rollout_id} attempt {first.init.request.attempt}")
    database.execute(f"DELETE {orphans}")
    return names


FACT = "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)"

KEPT = 10 * 365 * 86_400.0
"""The seconds for which a journal that drops nothing keeps its rollouts."""
BUDGET = 2**62
"""The disk budget of a journal that drops nothing, in bytes. A journal over its budget drops rollouts."""
FILE = "journal.db"
LOCK = "lock"
"""The file of the folder that the process that writes the journal locks."""
JOURNAL = Schema(
    kind="journal",
    tables_script=TABLES,
    error=JournalError,
    instead="another folder",
    page_size=8192,  # three replies of 256 tokens fit in this page, but only one reply fits in a page of 4,096 bytes
    shrinks=True,
    lock_of=lambda path: path.with_name(LOCK),
    sums={"rollouts": {"accept_sum": _ACCEPTED, "end_sum": _END, "deaths_sum": ("sequence", "deaths")}},
    clean=_clean,
)


def deaths_sum(sequence: int, deaths: int) -> int:
    """Return the checksum of the column `deaths`."""
    return row_sum(b"rollouts.deaths_sum", (sequence, deaths))


def fact(name: str, value: Any) -> tuple[Any, ...]:
    """Return a row of the table of facts."""
    return with_sum(b"facts.checksum", (name, value))


Conditions = list[tuple[str, tuple[Any, ...]]]


def selection(
    owner: str | None, after: int, where: "RolloutFilter", *, newest_first: bool
) -> tuple[str, tuple[Any, ...]]:
    """Return a query, and its values but the last, which is the largest number of rows.

    The rows have all rollouts that match the filter, and may have unsettled rollouts that do not. See Journal.entries.
    """
    known = _known(owner, after, where, newest_first=newest_first)
    order = f"ORDER BY sequence{' DESC' if newest_first else ''}"
    parts = [_part("rollouts_unsettled", "NOT settled", known)]
    if not where.only_unsettled:
        parts.append(_part("rollouts_listed", "settled", known + _of_the_end(where)))
    found = " UNION ALL ".join(part for part, _ in parts)
    values = [value for _, conditions in parts for value in conditions]
    query = f"SELECT * FROM rollouts WHERE sequence IN ({found} {order} LIMIT ?) {order}"  # noqa: S608
    return query, tuple(values)


def _part(index: str, which: str, conditions: Conditions) -> tuple[str, list[Any]]:
    text = " AND ".join([which, *(condition for condition, _ in conditions)])
    values = [value for _, values in conditions for value in values]
    return f"SELECT sequence FROM rollouts INDEXED BY {index} WHERE {text}", values  # noqa: S608


def _known(owner: str | None, after: int, where: "RolloutFilter", *, newest_first: bool) -> Conditions:
    """Return the conditions that are known from the acceptance on."""
    found: Conditions = []
    if after or not newest_first:
        found.append((f"sequence {'<' if newest_first else '>'} ?", (after,)))
    if owner is not None:
        found.append(("owner = ?", (owner,)))
    if where.group_id:
        found.append(("group_id = ?", (where.group_id,)))
    if where.forked_from:
        found.append(("forked_from = ?", (where.forked_from,)))
    if where.agent_loop:
        found.append(("agent_loop = ?", (where.agent_loop,)))
    if where.accepted_after is not None:
        found.append(("accept_time >= ?", (where.accepted_after,)))
    if where.accepted_before is not None:
        found.append(("accept_time < ?", (where.accepted_before,)))
    return found


def _of_the_end(where: "RolloutFilter") -> Conditions:
    """Return the conditions that are known from the end on."""
    found: Conditions = []
    if where.states:
        found.append(_one_of("state", [state.value for state in where.states]))
    if where.failure_reasons:
        found.append(_one_of("failure_reason", [str(reason) for reason in where.failure_reasons]))
    if where.finish_reason:
        found.append(("finish_reason = ?", (where.finish_reason,)))
    if where.min_reward is not None:
        found.append(("reward >= ?", (where.min_reward,)))
    if where.max_reward is not None:
        found.append(("reward <= ?", (where.max_reward,)))
    return found


def _one_of(column: str, values: list[str]) -> tuple[str, tuple[Any, ...]]:
    return f"{column} IN ({', '.join('?' * len(values))})", tuple(values)
