"""Replaces a damaged file with a new file that has all readable rows. Keeps the damaged file in the same folder.

Rows with a wrong checksum are copied, too, so that readers can report them.
"""

import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.storage.fsync import fsync
from osmosis_grpc.storage.sqlite.file_schema import Schema
from osmosis_grpc.storage.sqlite.pages import FoundRow, Pages

log = logging.getLogger(__name__)


class Salvaged(NamedTuple):
    """The content of a new file."""

    rows: int
    damaged: int
    lost: list[str]
    """The names of the rollouts whose row is lost."""


def salvage(pages: Pages, path: Path, schema: Schema, problem: str) -> None:
    """Replace a damaged file with a new file. Raises OSError, sqlite3.Error.

    After an error, the next start tries the replacement again, or continues it.
    """
    making, made = _named(path, "mending"), _named(path, "mended")
    making.unlink(missing_ok=True)
    found = read_out(pages, making, schema)
    fsync(making)
    making.replace(made)
    fsync(path.parent)
    aside = finish(path)
    log.error(
        "the %s %s is damaged: %s. Its rows were read into a new file: %d, of them %d damaged; %d could not be read. "
        "The damaged file is kept as %s",
        schema.kind,
        path,
        problem,
        found.rows,
        found.damaged,
        pages.lost,
        aside,
    )
    for name in found.lost:
        log.error("%s is lost from the %s %s", name, schema.kind, path)


def read_out(pages: Pages, fresh: Path, schema: Schema) -> Salvaged:
    """Create the file `fresh` with all readable rows. Raises OSError, sqlite3.Error."""
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        schema.create(database)
        database.execute("BEGIN")
        damaged = [row for row in pages.rows(schema) if not (row.sound and _put(database, row))]
        kept = sum(_put(database, row) for row in damaged if not row.sound)
        names = schema.clean(database)
        database.execute("COMMIT")
        counts = [database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in schema.tables]  # noqa: S608
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Salvaged(sum(counts), kept, list(names))


def finish(path: Path) -> Path | None:
    """Move the damaged file aside, and move a finished new file to its place. Continues after a crash.

    Returns the new path of the damaged file, or None if there is no finished new file.
    """
    made = _named(path, "mended")
    if not made.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S")
    aside, number = _named(path, f"damaged-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = _named(path, f"damaged-{stamp}-{number}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    for suffix in ("-wal", ""):
        if Path(f"{path}{suffix}").exists():
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    made.replace(path)
    fsync(path.parent)
    return aside


def _put(database: sqlite3.Connection, row: FoundRow) -> bool:
    """Insert a row, or replace an older version of the row. Returns whether the file has the row."""
    table, values = row.table, row.values
    marks = ", ".join("?" * len(values))
    try:
        put = database.execute(f"INSERT OR IGNORE INTO {table.name} VALUES ({marks})", values)  # noqa: S608
        if put.rowcount or not row.sound:
            return bool(put.rowcount)
        named = " AND ".join(f"{table.columns[at]} IS ?" for at in table.key)
        key: list[Any] = [values[at] for at in table.key]
        before = database.execute(f"SELECT * FROM {table.name} WHERE {named}", key).fetchone()  # noqa: S608
        if before is not None and table.newer(values, before):
            database.execute(f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})", values)  # noqa: S608
    except (sqlite3.Error, OverflowError):  # SQLite cannot store every damaged value
        return False
    return True


def _named(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")
