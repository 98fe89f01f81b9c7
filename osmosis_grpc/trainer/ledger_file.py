"""The ledger's file: opened by one process at a time, its schema brought up to date.

SQLite in WAL mode; every commit is synced to the disk. What is deleted leaves room in the file
that is used again; the file does not shrink.
"""

import fcntl
import os
import sqlite3
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from osmosis_grpc.errors import LedgerError

APPLICATION_ID = 0x6F734C31
"""Stands in the file's header, so that another program's database is not taken for a ledger."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE attachment (
        place TEXT PRIMARY KEY, attachment_id TEXT NOT NULL, journal_id TEXT NOT NULL, seen REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE rollout (
        rollout_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, place TEXT NOT NULL DEFAULT '',
        together TEXT NOT NULL DEFAULT '', init BLOB, tools BLOB, result_id TEXT, completion BLOB,
        ended REAL
    );
    CREATE TABLE confirmed (
        rollout_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, result_id TEXT NOT NULL, time REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE chat (
        rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, sample TEXT NOT NULL, number INTEGER NOT NULL,
        continues INTEGER NOT NULL, offered TEXT NOT NULL, question BLOB NOT NULL, reply BLOB NOT NULL,
        PRIMARY KEY (rollout_id, attempt, sample, number)
    );
    """,
)
"""Number n leads from version n of the schema to n + 1; one that was released is never changed."""

_PRAGMAS = ("synchronous = FULL", "wal_autocheckpoint = 4000", f"journal_size_limit = {64 * 1024 * 1024}")


class Lock:
    """Holds PATH.lock for this process. Raises LedgerError naming the process that holds it.

    The lock dies with the process, however that ends; a child that it forked does not keep it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "of unknown id"
            os.close(self._fd)
            mine = " (this one)" if holder == str(os.getpid()) else ""
            raise LedgerError(
                f"the ledger {path} is in use by process {holder}{mine}: end that one, or name another ledger"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Let it go. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forked() -> None:
    """In a forked child: the locks are the parent's, and end with it."""
    for lock in list(_held):
        with suppress(OSError):
            lock.release()


os.register_at_fork(after_in_child=_forked)


def open_file(path: Path, migrations: Sequence[str] | None = None) -> tuple[Lock, sqlite3.Connection]:
    """Open a ledger, made if there is none, for this process alone. Raises LedgerError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerError(f"the ledger {path} is a folder: name a file")
        lock = Lock(path)
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be opened: {error}") from error
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        lock.release()
        raise LedgerError(f"the ledger {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path, MIGRATIONS if migrations is None else migrations)
    except sqlite3.Error as error:
        connection.close()
        lock.release()
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from error
    except BaseException:
        connection.close()
        lock.release()
        raise
    return lock, connection


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise LedgerError(f"the file {path} is a database of another program: name another file for the ledger")
    if version > len(migrations):
        raise LedgerError(
            f"the ledger {path} has version {version} of the schema, and this release knows {len(migrations)} at most: "
            "use the release that wrote it, or a newer one"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    for number, migration in enumerate(migrations[version:], start=version + 1):
        connection.executescript(
            f"BEGIN; {migration}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}; COMMIT;"
        )
