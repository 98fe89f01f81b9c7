"""From a damaged file to a fresh one with all rows that can be read. The damaged file is kept beside it.

Rows whose checksum does not agree come along, so that whoever reads them can name them.
"""

import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.storage.sqlite.file_schema import Schema
from osmosis_grpc.storage.sqlite.pages import FoundRow, Pages

log = logging.getLogger(__name__)


class Salvaged(NamedTuple):
    """What a fresh file holds."""

    rows: int
    damaged: int
    lost: list[str]
    """Rollouts of which nothing is left that could be used."""


def salvage(pages: Pages, path: Path, schema: Schema, problem: str) -> None:
    """Put a fresh file in the place of a damaged one. Raises OSError, sqlite3.Error: then nothing has changed."""
    making, made = _named(path, "mending"), _named(path, "mended")
    making.unlink(missing_ok=True)
    found = read_out(pages, making, schema)
    _sync(making)
    making.replace(made)
    _sync(path.parent)
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
    """Make a file with all rows that can be read. Raises OSError, sqlite3.Error."""
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
        for pragma in (*schema.first, "journal_mode = WAL", "synchronous = OFF"):
            database.execute(f"PRAGMA {pragma}")
        database.executescript(f"BEGIN;\n{schema.script}\nCOMMIT;\nBEGIN")
        damaged = [row for row in pages.rows(schema) if not (row.sound and _put(database, row))]
        kept = sum(_put(database, row) for row in damaged if not row.sound)
        names = schema.clean(database)
        database.execute("COMMIT")
        counts = [database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in schema.tables]  # noqa: S608
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Salvaged(sum(counts), kept, list(names))


def finish(path: Path) -> Path | None:
    """Where a fresh file is ready, put it in its place, and the damaged one aside; a crash may come anywhere in it."""
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
    _sync(path.parent)
    return aside


def _put(database: sqlite3.Connection, row: FoundRow) -> bool:
    """Insert a row, in place of an older version of it; whether it is there then."""
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
    except (sqlite3.Error, OverflowError):  # a damaged value may be one that cannot be kept
        return False
    return True


def _named(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
