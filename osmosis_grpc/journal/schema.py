"""The journal's tables, and what is written to them of many rollouts at once."""

from osmosis_grpc.journal.database import Schema


class JournalError(Exception):
    """The journal is of no use, and this is why."""


FIRST = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE rollouts (
    sequence INTEGER PRIMARY KEY,          -- the order of acceptance
    rollout_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,                   -- the run of the trainer: the attachment, or the run id of the callback
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
    accepted_at REAL NOT NULL,             -- these two by the journal's clock, see clock.py
    ended_at REAL,
    deaths INTEGER NOT NULL DEFAULT 0,     -- of the server's process while its agent ran, since its last new reply
    UNIQUE (rollout_id, attempt)
);
CREATE INDEX rollouts_by_key ON rollouts (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX rollouts_unsettled ON rollouts (sequence) WHERE NOT settled;
CREATE INDEX rollouts_by_end ON rollouts (ended_at) WHERE settled;

CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,             -- the rollout
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    kind INTEGER NOT NULL,                 -- the field of TrajectoryEvent that it is
    body BLOB NOT NULL                     -- what that field holds, in wire form
);

CREATE TABLE tombstones (
    owner TEXT, rollout_id TEXT, attempt INTEGER NOT NULL,
    until REAL NOT NULL,                   -- by the journal's clock
    PRIMARY KEY (owner, rollout_id)
) WITHOUT ROWID;
"""

ACCEPT = """INSERT INTO rollouts (sequence, rollout_id, attempt, owner, place, target, delta, tls, agent_loop,
    idempotency_key, digest, accept_time, state, accepted, last_number, size, accepted_at) VALUES {rows}"""
EVENT = "INSERT INTO events VALUES {rows}"
END = """UPDATE rollouts SET state = v.column2, start_time = v.column3, end_time = v.column4, ended = v.column5,
    positions = v.column6, last_number = v.column7, size = v.column8, settled = v.column9, ended_at = v.column10
    FROM (VALUES {rows}) AS v WHERE sequence = v.column1"""
SETTLE = """UPDATE rollouts SET settled = 1, positions = v.column2, last_number = v.column3, size = v.column4
    FROM (VALUES {rows}) AS v WHERE sequence = v.column1"""
SEQUENCES = {ACCEPT: 0, EVENT: 1, END: 0, SETTLE: 0}
"""What is written of many rollouts at once, in the order of a rollout's life; where in a row its sequence is."""

FILE = "journal.db"
"""What it is called in its folder."""
JOURNAL = Schema(
    migrations=(FIRST,), error=JournalError, instead="another folder",
    first=("page_size = 8192", "auto_vacuum = INCREMENTAL"),  # three replies of 256 tokens fit, of 4,096 one would
)  # fmt: skip
