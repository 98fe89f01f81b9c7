"""Detects lost commits, and replaces a damaged file by a new one with the rows that SQLite can still read.

The damaged file stays in the same folder. Rows with a wrong checksum are copied, too, so that readers can report them.
If SQLite can read nothing, the file is refused, and only a backup helps.

SQLite does not read every commit of a damaged write-ahead log (https://sqlite.org/walformat.html). It stops at the
first frame with a wrong checksum, without an error, because a crash during a write leaves such a frame, too. But a
crash leaves no complete transaction after such a frame. If there is one, commits are lost.
"""

import logging
import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from osmosis_grpc.storage.sqlite.file_schema import Row, Schema, Table
from osmosis_grpc.storage.state_folders import fsync

log = logging.getLogger(__name__)

_HEAD = 32
_FRAME_HEAD = 24
_FRAMES_AT = 16
"""Where the index of the log has the number of frames that SQLite reads."""
_MASK = 0xFFFFFFFF


def log_of(path: Path) -> Path:
    """Return the path of the write-ahead log of a database."""
    return Path(f"{path}-wal")


def has_log(path: Path) -> bool:
    """Return whether a database has a write-ahead log with content."""
    try:
        return log_of(path).stat().st_size > _HEAD
    except FileNotFoundError:
        return False


def log_damage(path: Path) -> str:
    """Describe the damage in a database's write-ahead log. Return an empty text if no commit is lost.

    Call this while no other process writes, and while a connection is open that has read something. SQLite has then
    written the index of the log, which shows how much of the log is in use.
    """
    with suppress(FileNotFoundError), log_of(path).open("rb") as log, Path(f"{path}-shm").open("rb") as index:
        file, size = log.fileno(), os.fstat(log.fileno()).st_size
        head = os.pread(file, _HEAD, 0)
        if size <= _HEAD + _FRAME_HEAD:
            return ""
        magic, _, page_size, _, *salts, first, second = struct.unpack(">8I", head)
        if _checksum(head[:_FRAME_HEAD], ">" if magic & 1 else "<") != (first, second):
            return "the header of its write-ahead log is damaged"
        (used,) = struct.unpack("=I", os.pread(index.fileno(), 4, _FRAMES_AT))
        step = _FRAME_HEAD + page_size
        for at in range(_HEAD + used * step, size - step + 1, step):
            _, commits, *frame_salts = struct.unpack(">4I", os.pread(file, 16, at))
            if commits and frame_salts == salts:
                return f"frame {used + 1} of its write-ahead log is damaged, and later commits are lost"
    return ""


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    one = two = 0
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two


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


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error of SQLite reports a damaged file."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _NOT_DAMAGE


def readable_rows(database: sqlite3.Connection, table: Table) -> Iterator[Row]:
    """Yield the rows of a table that SQLite can read: from each end up to the first damaged page."""
    reached: int | None = None
    for order in ("ASC", "DESC"):
        try:
            query = f"SELECT rowid, * FROM {table.name} NOT INDEXED ORDER BY rowid {order}"  # noqa: S608
            for rowid, *row in database.execute(query):
                if order == "DESC" and reached is not None and rowid <= reached:
                    return
                yield row
                if order == "ASC":
                    reached = rowid
            return
        except sqlite3.Error as error:
            if not is_damage(error):
                raise


def recover(database: sqlite3.Connection, path: Path, schema: Schema, problem: str) -> None:
    """Copy what SQLite can read to a new file beside the damaged one. finish() puts it in its place.

    Raises:
        schema.error: SQLite can read no row.
        OSError, sqlite3.Error: The disk failed. The next start tries again.
    """
    making = _named(path, "recovering")
    making.unlink(missing_ok=True)
    os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(making, isolation_level=None)) as fresh:
        fresh.execute("PRAGMA synchronous = OFF")
        schema.create(fresh)
        fresh.execute("BEGIN")
        sound = damaged = 0
        for table in schema.tables.values():
            wrong = []
            for row in readable_rows(database, table):
                if table.wrong(row):
                    wrong.append(row)
                else:
                    sound += _put(fresh, table, row)
            damaged += sum(_put(fresh, table, row) for row in wrong)  # after the sound row with the same key
        names = schema.clean(fresh)
        fresh.execute("COMMIT")
        fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if not sound:
        making.unlink()
        raise schema.error(
            f"the {schema.kind} {path} is damaged, and SQLite can read nothing of it ({problem}): "
            f"move it away and restore a backup, or use {schema.instead}"
        )
    fsync(making)
    making.replace(_named(path, "recovered"))
    fsync(path.parent)
    log.error(
        "the %s %s is damaged: %s. What SQLite can read of it is in a new file: %d sound rows and %d damaged ones",
        schema.kind,
        path,
        problem,
        sound,
        damaged,
    )
    for name in names:
        log.error("%s is lost from the %s %s", name, schema.kind, path)


def finish(path: Path) -> None:
    """Move the damaged file aside and the new file to its place, if there is one. Continue after a crash."""
    made = _named(path, "recovered")
    if not made.exists():
        return
    stamp = time.strftime("%Y%m%dT%H%M%S")
    aside, number = _named(path, f"damaged-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = _named(path, f"damaged-{stamp}-{number}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    for file, place in ((log_of(path), log_of(aside)), (path, aside)):
        if file.exists():
            file.replace(place)
    made.replace(path)
    fsync(path.parent)
    log.error("the damaged file is kept as %s", aside)


def _put(fresh: sqlite3.Connection, table: Table, row: Row) -> int:
    """Insert a row, and return 1. Return 0 if the table refuses its values."""
    marks = ", ".join("?" * len(row))
    return fresh.execute(f"INSERT OR IGNORE INTO {table.name} VALUES ({marks})", row).rowcount  # noqa: S608


def _named(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")
