"""Describes a journal or a ledger file: the version of its schema, its tables, and the checksums of their rows.

Checksums detect a row with a changed value, and a row that has the key of another row. CRC-32 detects every change of
one or two bits, and every change within 32 adjacent bits. It misses one of 4 billion other changes. BLAKE2b with 64
bits takes twice the time (see docs/reliability.md, X9).
"""

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

_number = Struct("<cd").pack
_length = Struct("<cQ").pack
_event = Struct("<15scdcdcdcdcdcQ").pack
EVENTS = b"events.checksum"
"""The `about` of row_sum in the checksums of events."""


def row_sum(about: bytes, values: Iterable[Any]) -> int:
    """Return the checksum of values as SQLite stores them. `about` names the table and the column of the checksum."""
    parts = [about]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            parts += (_length(b"t", len(data)), data)
        elif isinstance(value, bytes):
            parts += (_length(b"b", len(value)), value)
        else:
            parts.append(_number(b"#", value))
    return crc32(b"".join(parts))


def with_sum(about: bytes, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values, followed by their row_sum."""
    values = tuple(values)
    return *values, row_sum(about, values)


def event_sum(position: int, sequence: int, number: int, time: float, kind: int, body: bytes) -> int:
    """Return the same checksum of an event as row_sum, in less time."""
    head = _event(EVENTS, b"#", position, b"#", sequence, b"#", number, b"#", time, b"#", kind, b"b", len(body))
    return crc32(body, crc32(head))


RELEASED = 7
"""The version of the files of 0.1.0. Files of development versions before it are refused."""

Row = Sequence[Any]
_TYPES: dict[str, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes, "": object}


@dataclass(frozen=True)
class Table:
    """One table: its columns, and the columns of each checksum."""

    name: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    """Indices of the primary key's columns."""
    optional: frozenset[int]
    """Indices of the columns that can be NULL. If all columns of a checksum are NULL, the checksum is NULL too."""
    types: tuple[type, ...]
    sums: Mapping[str, tuple[str, ...]]
    """The columns that each checksum covers, by the name of the checksum's column."""

    def wrong(self, row: Row) -> str:
        """Return the column of the first checksum that does not match. Return an empty text if all checksums match.

        Returns "a value" if a checksum cannot be computed.
        """
        try:
            for place, about, covered in self._checks:
                if row[place] is None:
                    if any(row[at] is not None for at in covered if at in self.optional):
                        return self.columns[place]
                elif row[place] != row_sum(about, [row[at] for at in covered]):
                    return self.columns[place]
        except Exception:  # a damaged value can have any type
            return "a value"
        return ""

    def usable(self, row: Row) -> list[Any]:
        """Return a row with NULL, 0 or an empty value in place of values of a wrong type, as a damaged row can have."""
        return [
            value if isinstance(value, kind) else None if at in self.optional else kind()
            for at, (value, kind) in enumerate(zip(row, self.types, strict=True))
        ]

    def delete_damaged(self, database: sqlite3.Connection) -> list[Row]:
        """Delete the rows with a wrong checksum, and return these rows."""
        rows = database.execute(f"SELECT rowid, * FROM {self.name} NOT INDEXED").fetchall()  # noqa: S608
        damaged = [row for row in rows if self.wrong(row[1:])]
        database.executemany(f"DELETE FROM {self.name} WHERE rowid = ?", [row[:1] for row in damaged])  # noqa: S608
        return [row[1:] for row in damaged]

    @cached_property
    def _checks(self) -> list[tuple[int, bytes, list[int]]]:
        return [
            (self.columns.index(name), f"{self.name}.{name}".encode(), [self.columns.index(c) for c in covered])
            for name, covered in self.sums.items()
        ]


@dataclass(frozen=True)
class Schema:
    """One kind of file: the journal or the ledger."""

    kind: str
    """Its name in messages: journal or ledger."""
    tables_script: str
    error: Callable[[str], Exception]
    """Makes the error for a file that cannot be opened, for example a file of another version."""
    instead: str
    """The advice in the error for a refused file."""
    page_size: int
    shrinks: bool
    lock_of: Callable[[Path], Path]
    """Returns the lock of a file. The process that writes the file holds it."""
    sums: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """The checksums of each table. A table without an entry has one checksum of all columns."""
    clean: Callable[[sqlite3.Connection], Sequence[str]] = lambda database: ()
    """Deletes the orphaned rows of a recovered file, and returns the names of their rollouts."""
    pragmas: tuple[str, ...] = ()
    """Further pragmas of the connection that writes."""
    steps: tuple[str, ...] = ()
    """The SQL that turns a file of each released version into one of the next, from RELEASED on.

    A released step never changes. A step adds columns that may be NULL at the end of a table, with a checksum of their
    own, and tables and indices; `tables_script` has them at the same places. So a file of any release can be converted
    in a short transaction, and the checksums of its rows stay valid. A message that is recorded in a column may get
    fields, as the protocol does."""

    CATALOG = """SELECT type, name, tbl_name, CASE type WHEN 'table' THEN
        (SELECT group_concat(quote(i.name) || i.type || i."notnull" || quote(i.dflt_value) || i.pk)
            FROM pragma_table_info(s.name) AS i)
        ELSE sql END FROM sqlite_schema AS s ORDER BY name"""

    @property
    def version(self) -> int:
        """The version of the tables that `tables_script` makes."""
        return RELEASED + len(self.steps)

    def application_id(self, version: int) -> int:
        """Return the application id of a version."""
        return zlib.crc32(f"osmosis_grpc {self.kind} {version}".encode()) & 0x7FFFFFFF

    def create(self, database: sqlite3.Connection) -> None:
        """Create the tables in an empty file, and set the version."""
        database.execute(f"PRAGMA page_size = {self.page_size}")
        database.execute(f"PRAGMA auto_vacuum = {'INCREMENTAL' if self.shrinks else 'NONE'}")
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN;\n{self.tables_script};\n{self._marks};\nCOMMIT;")

    def convert(self, database: sqlite3.Connection, version: int) -> None:
        """Bring a file of an earlier release to this version, in one transaction. Raises sqlite3.Error, self.error."""
        steps = ";\n".join(self.steps[version - RELEASED :])
        try:
            database.executescript(f"BEGIN IMMEDIATE;\n{steps};\n{self._marks}")
            if database.execute(self.CATALOG).fetchall() != self.catalog:
                raise self.error(f"the steps from version {version} do not lead to the tables of this {self.kind}")
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")

    @property
    def _marks(self) -> str:
        return f"PRAGMA application_id = {self.application_id(self.version)}; PRAGMA user_version = {self.version}"

    @cached_property
    def catalog(self) -> list[tuple[Any, ...]]:
        """The tables with their columns, and the indices, of a file of this kind: what the query CATALOG returns."""
        with closing(self._empty()) as database:
            return database.execute(self.CATALOG).fetchall()

    @cached_property
    def tables(self) -> dict[str, Table]:
        """All tables, by name."""
        with closing(self._empty()) as database:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            return {name: self._table(database, name) for (name,) in names}

    def _empty(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:")
        self.create(database)
        return database

    def _table(self, database: sqlite3.Connection, name: str) -> Table:
        info = database.execute(f"PRAGMA table_info({name})").fetchall()
        columns = tuple(row[1] for row in info)
        key = tuple(row[0] for row in sorted(info, key=lambda row: row[5]) if row[5])
        every = {"checksum": tuple(column for column in columns if column != "checksum")}
        optional = frozenset(row[0] for row in info if not (row[3] or row[5]))
        types = tuple(_TYPES[row[2]] for row in info)
        return Table(name, columns, key, optional, types, self.sums.get(name, every))
