"""Opens a journal or a ledger. Creates a missing file, repairs a damaged file, and refuses a file of another version.

Before the release of 0.1.0, no file is converted to another version. The rows of a damaged file are copied to a new
file (salvage.py), so a program can start with any file of its own version.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from osmosis_grpc.storage.lock_file import Lock, Locked
from osmosis_grpc.storage.sqlite.file_schema import SCHEMA_VERSION, Schema
from osmosis_grpc.storage.sqlite.own_files import OwnFiles
from osmosis_grpc.storage.sqlite.pages import Pages, has_wal, is_own
from osmosis_grpc.storage.sqlite.salvage import finish, salvage

log = logging.getLogger(__name__)

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", f"journal_size_limit = {64 * 1024 * 1024}")
_NOT_DAMAGE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
}
"""Codes of SQLite's errors that do not report damage. Their cause is, for example, the disk or another process."""


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that one thread at a time can use. Raises sqlite3.Error.

    The connection begins no transaction by itself.
    """
    return _lenient(sqlite3.connect(path, isolation_level=None, check_same_thread=False))


def _open(path: Path, schema: Schema) -> sqlite3.Connection:
    """Return the connection that writes a file. Creates a missing file and repairs a damaged one.

    Raises schema.error, OSError, sqlite3.Error.
    """
    finish(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives its other files the same mode
    with closing(Pages(path, schema.page_size)) as pages:
        check_version(pages, path, schema)
        problem = pages.problem(schema)
        if not (problem or pages.is_blank):
            with closing(connect(path)) as database:
                database.execute("PRAGMA query_only = 1")
                problem = problem_of(database, schema)
        if problem:
            salvage(pages, path, schema, problem)
    database = connect(path)
    try:
        _prepare(database, schema)
    except BaseException:
        database.close()
        raise
    return database


class LockedFile:
    """A file, its lock, and the connection that writes it. Creates a missing file and repairs a damaged one.

    Raises Locked, OSError, sqlite3.Error, and schema.error for a file of another program or version.
    """

    def __init__(self, path: Path, lock: Path, schema: Schema) -> None:
        self.path = path
        self.kind = schema.kind
        with ExitStack() as stack:
            self.lock = Lock(lock)
            stack.callback(self.lock.close)
            self.database = _open(path, schema)
            stack.callback(self.database.close)
            self._files = OwnFiles(path, self.database)
            self._files.check()
            self._stack = stack.pop_all()

    def check(self) -> None:
        """Raise LockLost if the lock is lost, and FilesLost if the paths no longer name the files that are written."""
        self.lock.check()
        self._files.check()

    def close(self) -> None:
        """Close the connection, then release the lock. Idempotent."""
        self._stack.close()


@contextmanager
def explained(schema: Schema, path: Path, advice: str) -> Iterator[None]:
    """Turn every error of opening a file into schema.error, with the path in the message."""
    try:
        yield
        return
    except Locked as lock:
        problem = f"is in use by process {lock}: {advice}"
    except OSError as error:
        problem = f"cannot be used as a {schema.kind}: {error.strerror or error}"
    except sqlite3.Error as error:
        problem = f"cannot be used as a {schema.kind}: {error}"
    raise schema.error(f"{path} {problem}")


def look(path: Path, schema: Schema) -> sqlite3.Connection:
    """Return a read-only connection that sees the present content of the file. Raises schema.error, sqlite3.Error.

    SQLite creates no other file. If the file has no write-ahead log, no process has the file open, so SQLite opens the
    file as immutable.
    """
    _check_readable(path, schema)
    mode = "mode=ro" if has_wal(path) else "immutable=1"
    database = _lenient(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None))
    try:
        database.execute("BEGIN")
        database.execute("SELECT 1 FROM sqlite_schema").fetchall()  # this read begins the snapshot
    except BaseException:
        database.close()
        raise
    return database


def _check_readable(path: Path, schema: Schema) -> None:
    """Raise schema.error for an empty file, and for a file of another program or version.

    The first page of a new or damaged file is perhaps in the write-ahead log only. Then the whole log is read, which
    takes up to half a second.
    """
    with open(path, "rb") as file:
        if is_own(file.read(100), schema.application_id(SCHEMA_VERSION), SCHEMA_VERSION):
            return
    with closing(Pages(path, schema.page_size)) as pages:
        check_version(pages, path, schema)
        if pages.is_blank:
            raise schema.error(f"the {schema.kind} {path} is empty")


def check_version(pages: Pages, path: Path, schema: Schema) -> None:
    """Raise schema.error for a file of another program or another version."""
    if pages.is_blank:
        return
    if not pages.is_database:
        raise schema.error(f"{path} cannot be used as a {schema.kind}: file is not a database")
    application, version = pages.application_id, pages.user_version
    own = schema.application_id(SCHEMA_VERSION)
    if (application ^ own).bit_count() + (version ^ SCHEMA_VERSION).bit_count() <= 1:  # one flipped bit is damage
        return
    legacy = (application, version) == (schema.legacy_id, 1) and pages.has_table(schema.known_table)
    if not (legacy or application in (own, schema.application_id(version))):
        raise schema.error(f"{path} is a database of another program: use {schema.instead}")
    age = "an older" if version < SCHEMA_VERSION else "a newer"
    raise schema.error(
        f"{path} was written by {age} version (schema {version}, this one reads {SCHEMA_VERSION}): "
        f"move it away, or use {schema.instead}"
    )


def problem_of(database: sqlite3.Connection, schema: Schema) -> str:
    """Describe the damage in a file's structure. Returns an empty text if there is no damage.

    Raises sqlite3.Error if the disk fails.
    """
    try:
        if database.execute(schema.CATALOG).fetchall() != schema.catalog:
            return "its tables are not those of this version"
        for (found,) in database.execute("PRAGMA integrity_check(1)").fetchall():
            if found != "ok":
                return " ".join(str(found).removeprefix("*** in database main ***").split())
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _NOT_DAMAGE:
            raise
        return str(error)
    return ""


def _prepare(database: sqlite3.Connection, schema: Schema) -> None:
    """Create the tables of a new file, and set the pragmas of a connection that writes."""
    if database.execute("PRAGMA user_version").fetchone() == (0,):
        schema.create(database)
    for pragma in (*_PRAGMAS, *schema.pragmas):
        database.execute(f"PRAGMA {pragma}")


def _lenient(database: sqlite3.Connection) -> sqlite3.Connection:
    """Make a connection return damaged texts without an error. The checksum of the row reports the damage."""
    database.text_factory = partial(str, encoding="utf-8", errors="replace")
    return database
