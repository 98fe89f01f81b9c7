"""The ledger's tables and their checksums. Later rows reuse the pages of deleted rows. The file does not shrink."""

from pathlib import Path

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.storage.sqlite.file_schema import Schema

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
