"""A file of SQLite's: opened, told from another program's, and brought up to date.

Which tables are in it, and what is said when it is of no use, is for whoever has it to know.
"""

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", f"journal_size_limit = {64 * 1024 * 1024}")


@dataclass(frozen=True, slots=True)
class Schema:
    """What kind of a file it is."""

    migrations: tuple[str, ...]
    """What leads from each version to the next, from 0, an empty file, on; one that was released never changes."""
    error: Callable[[str], Exception]
    """Raised when a file is another program's or of a version that is not known here."""
    instead: str
    """What else may be used, in words."""
    application_id: int = 0
    """In the file's header; 0 stands in those of many programs."""
    first: tuple[str, ...] = ()
    """Pragmas of a file that is made."""
    pragmas: tuple[str, ...] = ()
    """Pragmas of the connection that writes, beside those of every such file."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection for one thread at a time, without transactions of its own making. Raises sqlite3.Error."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def open_database(path: Path, schema: Schema) -> sqlite3.Connection:
    """The connection that writes a file, which is made or migrated. Raises schema.error, OSError, sqlite3.Error."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
    database = connect(path)
    try:
        _prepare(database, path, schema)
    except BaseException:
        database.close()
        raise
    return database


def look(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection that changes nothing, and sees what is there now. Raises schema.error, sqlite3.Error."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        database.execute("BEGIN")
        version, known = _version(database, path, schema), len(schema.migrations)
        if version < known:
            raise schema.error(
                f"{path} is of schema {version}, and this version reads {known}: let a server of this one open it first"
            )
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, schema: Schema) -> None:
    version = _version(database, path, schema)
    for pragma in (*(() if version else schema.first), *_PRAGMAS, *schema.pragmas):
        database.execute(f"PRAGMA {pragma}")
    for number, migration in enumerate(schema.migrations[version:], version + 1):
        database.executescript(
            f"BEGIN;\n{migration};\nPRAGMA application_id = {schema.application_id};\n"
            f"PRAGMA user_version = {number};\nCOMMIT;"
        )


def _version(database: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Which version of the schema a file has; 0 for an empty one. Raises schema.error for what is none of ours."""
    version, known = int(database.execute("PRAGMA user_version").fetchone()[0]), len(schema.migrations)
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application or version or tables) and (application != schema.application_id or not version):
        raise schema.error(f"{path} is a database of another program: use {schema.instead}")
    if version > known:
        raise schema.error(
            f"{path} was written by a newer version (schema {version}, this one knows {known}): "
            f"use that version, or {schema.instead}"
        )
    return version
