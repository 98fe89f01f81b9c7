"""Opens a journal or a ledger: creates a missing file, recovers a damaged one, and converts one of an earlier release.

A file of a later release is refused and stays as it is. What SQLite can read of a damaged file is copied to a new file
(damaged_file.py). A reader that may not write converts a copy.

It also detects that a file which this process writes was removed, replaced or truncated. SQLite continues to write to a
removed file, and all these writes are lost when the process ends.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from osmosis_grpc.storage.lock_file import Lock, Locked
from osmosis_grpc.storage.sqlite.damaged_file import finish, has_log, is_damage, log_damage, recover
from osmosis_grpc.storage.sqlite.file_schema import RELEASED, Schema

log = logging.getLogger(__name__)


class FilesLost(Exception):
    """A path no longer names the file that this process writes."""


class OwnFiles:
    """The file of a database, its write-ahead log, and the index of the log. Each is checked once it exists.

    While a connection is open, SQLite removes none of them, and only a commit of this process makes the file smaller.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = str(path.absolute())
        self._database = database
        self._known: dict[str, tuple[int, int]] = {}
        self._size = 0

    def check(self) -> None:
        """Raise FilesLost if one of the files was removed or replaced, or if the database was truncated."""
        for path in (self._path + end for end in _ENDS):
            known = self._known.get(path)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                if known is None:
                    continue
                raise FilesLost(f"{path} was removed: {_ADVICE}") from None
            if self._known.setdefault(path, (found.st_ino, found.st_dev)) != (found.st_ino, found.st_dev):
                raise FilesLost(f"{path} was replaced: {_ADVICE}")
            if path == self._path:
                self._check_size(found.st_size)

    def _check_size(self, size: int) -> None:
        """Raise FilesLost if the file has become shorter, unless SQLite's own commits made it so."""
        if size < self._size:
            ((pages,), (page,)) = (
                self._database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
            if size == 0 or size < pages * page:
                raise FilesLost(f"{self._path} was cut from {self._size} to {size} bytes: {_ADVICE}")
        self._size = size


_ENDS = ("", "-wal", "-shm")
_ADVICE = (
    "what this process writes would be lost, so it stops; stop the process before you move or replace its files, and "
    "exclude this folder from cleaners of old files"
)


_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", f"journal_size_limit = {64 * 1024 * 1024}")


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that one thread at a time can use. Raises sqlite3.Error.

    The connection begins no transaction by itself.
    """
    return _lenient(sqlite3.connect(path, isolation_level=None, check_same_thread=False))


def _open(path: Path, schema: Schema) -> sqlite3.Connection:
    """Return the connection that writes a file. Create a missing file, recover a damaged one, convert an older one.

    Raises schema.error, OSError, sqlite3.Error.
    """
    finish(path)  # a recovery that a crash has interrupted
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives its other files the same mode
    # A connection that can write would empty the write-ahead log, of which a damaged file's copy needs all.
    with closing(_read_only(path)) as database:
        version = version_of(database, path, schema)
        problem = log_damage(path) or (problem_of(database, schema, version) if version else "")
        if problem and 0 < version < schema.version:
            raise schema.error(
                f"{path} is damaged ({problem}), and an earlier version wrote it: let that version open it once, "
                f"restore a backup, or use {schema.instead}"
            )
        if problem:
            recover(database, path, schema, problem)
    finish(path)
    database = connect(path)
    try:
        _prepare(database, path, schema)
    except BaseException:
        database.close()
        raise
    return database


class LockedFile:
    """A file, its lock, and the connection that writes it. A missing file is created, and a damaged one recovered.

    Raises Locked, OSError, sqlite3.Error, and schema.error for a file of another program or version.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.kind = schema.kind
        with ExitStack() as stack:
            self.lock = Lock(schema.lock_of(path))
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
    """Return a read-only connection that sees the present content of the file. Raises schema.error, sqlite3.Error."""
    database = _read_only(path)
    try:
        version = version_of(database, path, schema)
        if not version:
            raise schema.error(f"the {schema.kind} {path} is empty")
        if version < schema.version:
            database = _converted_copy(database, schema, version)
        database.execute("BEGIN")
        database.execute("SELECT 1 FROM sqlite_schema").fetchall()  # this read begins the snapshot
    except BaseException:
        database.close()
        raise
    return database


def _read_only(path: Path) -> sqlite3.Connection:
    """Connect without a right to write.

    If the file has no write-ahead log, no process has the file open, so SQLite opens the file as immutable.
    """
    with open(path, "rb"):  # SQLite's own error does not say that the file is missing
        mode = "mode=ro" if has_log(path) else "immutable=1"
    return _lenient(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None))


def _converted_copy(database: sqlite3.Connection, schema: Schema, version: int) -> sqlite3.Connection:
    """Return a connection to a temporary copy, which has this version. Closes the given connection."""
    copy = _lenient(sqlite3.connect("", isolation_level=None, check_same_thread=False))
    try:
        with closing(database):
            database.backup(copy)
        schema.convert(copy, version)
    except BaseException:
        copy.close()
        raise
    return copy


def version_of(database: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Return the version of a file, and 0 if it has no tables yet.

    Raises schema.error for a file of another program, of a later version, or of a version before the first release.
    """
    try:
        (application,), (version,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if application == schema.application_id(version) and RELEASED <= version <= schema.version:
            return int(version)
        if not (application or version or database.execute("SELECT 1 FROM sqlite_schema").fetchone()):
            return 0
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise schema.error(
            f"{path} cannot be used as a {schema.kind}: {error}; if it was one, move it away and restore a backup"
        ) from None
    if application not in (schema.application_id(schema.version), schema.application_id(version)):
        raise schema.error(f"{path} is a database of another program: use {schema.instead}")
    age = "an older" if version < schema.version else "a newer"
    raise schema.error(
        f"{path} was written by {age} version (schema {version}, this one reads {schema.version}): "
        f"move it away, or use {schema.instead}"
    )


def problem_of(database: sqlite3.Connection, schema: Schema, version: int) -> str:
    """Describe the damage in the structure of a file of a version. Return an empty text if there is no damage.

    Raises sqlite3.Error if the disk fails.
    """
    try:
        if version == schema.version and database.execute(schema.CATALOG).fetchall() != schema.catalog:
            return "its tables are not those of this version"
        for (found,) in database.execute("PRAGMA integrity_check(1)").fetchall():
            if found != "ok":
                return " ".join(str(found).removeprefix("*** in database main ***").split())
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return str(error)
    return ""


def _prepare(database: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Create or convert the tables, and set the pragmas of a connection that writes."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if not version:
        schema.create(database)
    elif version < schema.version:
        schema.convert(database, version)
        log.warning(
            "the %s %s now has version %d; the release that wrote it cannot open it", schema.kind, path, schema.version
        )
    for pragma in (*_PRAGMAS, *schema.pragmas):
        database.execute(f"PRAGMA {pragma}")


def _lenient(database: sqlite3.Connection) -> sqlite3.Connection:
    """Make a connection return damaged texts without an error. The checksum of the row reports the damage."""
    database.text_factory = partial(str, encoding="utf-8", errors="replace")
    return database
