"""The tables, and how a file of an older version becomes one of this."""

import sqlite3
import uuid
from pathlib import Path


class JournalError(Exception):
    """The journal cannot be opened, and this is why."""


FIRST = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE rollouts (
    sequence INTEGER PRIMARY KEY,          -- the order of acceptance
    rollout_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,                   -- the attachment; empty for a callback
    target TEXT NOT NULL,                  -- the callback's; empty for an attachment
    delta INTEGER NOT NULL,                -- whether that callback wants deltas
    tls TEXT,                              -- the name in its certificate, empty for its host's; NULL without TLS
    agent_loop TEXT NOT NULL,
    idempotency_key TEXT,
    digest BLOB NOT NULL,
    accept_time REAL NOT NULL,
    start_time REAL,
    end_time REAL,
    state TEXT NOT NULL,
    accepted INTEGER NOT NULL,             -- positions of these two events
    ended INTEGER,
    positions BLOB,                        -- of all its events, once it has ended: 8 bytes each, little-endian
    last_number INTEGER NOT NULL,
    size INTEGER NOT NULL,                 -- bytes of its events
    settled INTEGER NOT NULL DEFAULT 0,
    UNIQUE (rollout_id, attempt)
);
CREATE INDEX rollouts_by_key ON rollouts (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX rollouts_unsettled ON rollouts (sequence) WHERE NOT settled;
CREATE INDEX rollouts_by_end ON rollouts (end_time) WHERE settled;

CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,             -- the rollout
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    kind INTEGER NOT NULL,                 -- the field of TrajectoryEvent that it is
    body BLOB NOT NULL                     -- what that field holds, in wire form
);

CREATE TABLE tombstones (
    owner TEXT, rollout_id TEXT, attempt INTEGER NOT NULL, until REAL NOT NULL, PRIMARY KEY (owner, rollout_id)
) WITHOUT ROWID;
"""

ACCEPT = """INSERT INTO rollouts (sequence, rollout_id, attempt, owner, place, target, delta, tls, agent_loop,
    idempotency_key, digest, accept_time, state, accepted, last_number, size) VALUES {rows}"""
EVENT = "INSERT INTO events VALUES {rows}"
END = """UPDATE rollouts SET state = v.column2, start_time = v.column3, end_time = v.column4, ended = v.column5,
    positions = v.column6, last_number = v.column7, size = v.column8, settled = v.column9
    FROM (VALUES {rows}) AS v WHERE sequence = v.column1"""
SETTLE = """UPDATE rollouts SET settled = 1, positions = v.column2, last_number = v.column3, size = v.column4
    FROM (VALUES {rows}) AS v WHERE sequence = v.column1"""
SEQUENCES = {ACCEPT: 0, EVENT: 1, END: 0, SETTLE: 0}
"""What is written of many rollouts at once, in the order of a rollout's life; where in a row its sequence is."""

FILE = "journal.db"
"""What it is called in its folder."""
MIGRATIONS = (FIRST,)
"""What leads from each version to the next, from 0, an empty file, on."""


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """A connection for one thread."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    database.execute("PRAGMA busy_timeout = 5000")
    if not writes:
        database.execute("PRAGMA query_only = 1")
    else:
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA journal_size_limit = 67108864")
    return database


def look(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, and sees what is there now and no later. Raises JournalError."""
    if not path.exists():
        raise JournalError(f"there is no journal {path}")
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            database.execute("PRAGMA busy_timeout = 5000")
            database.execute("BEGIN")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != len(MIGRATIONS):
                raise JournalError(
                    f"{path} is of schema {version}, and this version reads {len(MIGRATIONS)}: "
                    "use the version that wrote it, or let a server of this one open it first"
                )
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be read as a journal: {error}") from None
    return database


def prepare(path: Path) -> str:
    """Make or migrate the file; returns its journal id. Raises JournalError."""
    try:
        database = connect(path, writes=True)
        try:
            return _prepare(path, database)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be used as a journal: {error}") from None


def _prepare(path: Path, database: sqlite3.Connection) -> str:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise JournalError(
            f"{path} was written by a newer version (schema {version}, this one knows {len(MIGRATIONS)}): "
            "use that version, or another folder"
        )
    if version == 0:
        database.execute("PRAGMA page_size = 8192")  # three replies of 256 tokens fit, of 4,096 one would
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    for number in range(version, len(MIGRATIONS)):
        database.executescript(f"BEGIN;\n{MIGRATIONS[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;")
    made = uuid.uuid4().hex
    database.execute("INSERT OR IGNORE INTO facts VALUES ('journal_id', ?), ('forgotten_position', 0)", (made,))
    (journal_id,) = database.execute("SELECT value FROM facts WHERE name = 'journal_id'").fetchone()
    return str(journal_id)
