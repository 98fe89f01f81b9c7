"""The ledger's file: its tables, and how one process has it.

What is deleted leaves room in the file that is used again; the file does not shrink.
"""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.storage.lock import Lock, Locked
from osmosis_grpc.storage.sqlite.database import open_database
from osmosis_grpc.storage.sqlite.file_schema import Schema

Found = TypeVar("Found")

TABLES = """
CREATE TABLE attachment (
    server_key TEXT PRIMARY KEY, attachment_id TEXT NOT NULL, journal_id TEXT NOT NULL, seen REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE rollout (
    rollout_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, server_key TEXT NOT NULL, affinity_key TEXT NOT NULL,
    init BLOB, tools BLOB, result_id TEXT, completion BLOB, ended REAL,
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
    known_table="chat",
    page_size=4096,
    shrinks=False,
    legacy_id=0x6F734C31,
    pragmas=("wal_autocheckpoint = 4000",),
    sums={
        "rollout": {
            "assignment_sum": ("rollout_id", "attempt", "server_key", "affinity_key", "init"),
            "tools_sum": ("rollout_id", "attempt", "tools"),
            "end_sum": ("rollout_id", "attempt", "result_id", "completion", "ended"),
        }
    },
    rank={"rollout": ("attempt", "ended", "tools_sum"), "confirmed": ("attempt", "time"), "attachment": ("seen",)},
)


def open_file(
    path: Path, read: Callable[[sqlite3.Connection], Found], schema: Schema = LEDGER
) -> tuple[Lock, sqlite3.Connection, Found]:
    """Open a ledger, made if there is none, for this process alone, and read it. Raises LedgerError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerError(f"the ledger {path} is a folder: name a file")
        with ExitStack() as stack:
            lock = Lock(Path(f"{path}.lock"))
            stack.callback(lock.close)
            database = open_database(path, schema)
            stack.callback(database.close)
            found = read(database)
            stack.pop_all()
        return lock, database, found
    except Locked as locked:
        problem = f"is in use by process {locked.holder}: end that one, or name another ledger"
    except OSError as error:
        problem = f"cannot be opened: {error}"
    except sqlite3.Error as error:
        problem = f"cannot be read: {error}"
    raise LedgerError(f"the ledger {path} {problem}")
