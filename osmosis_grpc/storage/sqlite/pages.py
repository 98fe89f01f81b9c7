"""Reads the pages of a SQLite file, and their rows, without SQLite. So it can read a file that SQLite refuses to read.

The search for rows reads one page after another, and does not need the links between pages. Nothing is written. The
checksum of a row shows whether the row is sound.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.storage.sqlite import cells
from osmosis_grpc.storage.sqlite.file_schema import Schema, Table
from osmosis_grpc.storage.sqlite.wal import HEAD, read_log

_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF, _TABLE_INTERIOR, _INDEX_INTERIOR, _INDEX_LEAF = 13, 5, 2, 10


class FoundRow(NamedTuple):
    """A sound or damaged row in a page."""

    table: Table
    values: list[Any]
    sound: bool
    """Whether the checksums of the row match."""


def has_wal(path: Path) -> bool:
    """Return whether a file has a write-ahead log with content."""
    try:
        return _wal(path).stat().st_size > HEAD
    except FileNotFoundError:
        return False


def is_own(head: bytes, application_id: int, version: int) -> bool:
    """Return whether the first 100 bytes of a file are those of a database of this program and version."""
    whole = len(head) == 100 and head[:16] == _MAGIC
    return whole and struct.unpack_from(">I4xI", head, 60) == (version, application_id)


def _wal(path: Path) -> Path:
    return Path(f"{path}-wal")


class Pages:
    """A file and its write-ahead log, open for reading until close(). Raises OSError."""

    def __init__(self, path: Path, page_size: int) -> None:
        self.size = page_size
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._log = read_log(_bytes_of(_wal(path)), page_size)
        self.count = self._log.size or -(-os.fstat(self._file).st_size // page_size)
        self.lost = 0
        """The number of rows so far that could not be read."""
        self._first = self.page(1).ljust(page_size, b"\0")
        self.user_version, _, self.application_id = struct.unpack_from(">3I", self._first, 60)
        self.is_database = sum(one == other for one, other in zip(self._first, _MAGIC, strict=False)) >= 12
        """Whether the file begins like a SQLite file. A few bytes can differ."""
        unused = not (self.application_id or self.user_version) and self._first[103:105] == b"\0\0"
        self.is_blank = not self.count or unused
        """Whether no table was ever created in the file."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def page(self, number: int) -> bytes:
        """Return a page as of the last commit. The first page has the number 1."""
        known = self._log.pages.get(number)
        return known if known is not None else os.pread(self._file, self.size, (number - 1) * self.size)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table with a name."""
        return any(values[:2] == ["table", name] for values in self._schema_rows())

    def problem(self, schema: Schema) -> str:
        """Describe the damage in the file's header or write-ahead log. Returns an empty text if there is no damage."""
        if self.is_blank:
            return ""
        head = self._first
        version = schema.application_id(self.user_version)
        fields = {
            "its first bytes": head[:16] == _MAGIC,
            "the page size": head[16:18] == struct.pack(">H", self.size),
            "the format": head[18:24] == b"\x02\x02\x00\x40\x20\x20" and head[44:48] == b"\0\0\0\4",
            "the encoding": head[56:60] == b"\0\0\0\1",
            "the version": self.application_id == version,
            "the way it shrinks": (head[52:56] != bytes(4), head[64:68] != bytes(4)) == (schema.shrinks,) * 2,
            "the reserved bytes": head[72:92] == bytes(20),
        }
        wrong = [name for name, sound in fields.items() if not sound]
        return self._log.problem or (f"{wrong[0]} in its header" if wrong else "")

    # The rows.

    def rows(self, schema: Schema) -> Iterator["FoundRow"]:
        """Yield all rows. A row can come in several versions. Table.newer compares two versions."""
        unused = self._unused()
        for number in range(2, self.count + 1):
            if number not in unused:
                yield from self._rows_of(self.page(number), schema)

    def _rows_of(self, page: bytes, schema: Schema) -> Iterator["FoundRow"]:
        kind = page[0] if page else 0
        if kind in (0, _INDEX_INTERIOR, _INDEX_LEAF) or len(page) < self.size:
            return
        pointers = cells.pointers(page) if kind == _TABLE_LEAF else []
        read = {at: cells.read(page, at, self.page, self.size) for at in pointers}
        rows = {at: row for at, cell in read.items() if cell is not None and (row := _row(cell, schema)) is not None}
        whole = kind == _TABLE_LEAF and cells.accounted(page, [cell.size if cell else 0 for cell in read.values()])
        if not whole or len(rows) < len(read):  # search the page for sound rows at every offset
            for at in range(8, self.size - 4):
                if at not in rows and (cell := cells.read(page, at, self.page, self.size)) is not None:
                    row = _row(cell, schema)
                    if row is not None and row.sound:
                        rows[at] = row
        self.lost += max(0, len(pointers) - len(rows))
        yield from rows.values()

    def _schema_rows(self) -> Iterator[list[Any]]:
        for at in cells.pointers(self._first, 100):
            cell = cells.read(self._first, at, self.page, self.size)
            if cell is not None and len(cell.values) == 5:
                yield cell.values

    def _unused(self) -> set[int]:
        """Return the free pages. All their rows are deleted. Returns no page if the list of free pages is damaged."""
        trunk, count = struct.unpack_from(">2I", self._first, 32)
        free: set[int] = set()
        while trunk:
            if not 2 <= trunk <= self.count or trunk in free:
                return set()
            free.add(trunk)
            page = self.page(trunk)
            trunk, leaves = struct.unpack_from(">2I", page)
            if leaves > self.size // 4 - 2:
                return set()
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
        return free - self._used() if len(free) == count else set()

    def _used(self) -> set[int]:
        """Return the pages of tables and indexes that the links between pages reach."""
        used: set[int] = set()
        left = [values[3] for values in self._schema_rows() if isinstance(values[3], int)]
        while left:
            number = left.pop()
            if not 2 <= number <= self.count or number in used:
                continue
            used.add(number)
            page = self.page(number)
            if page and page[0] in (_TABLE_INTERIOR, _INDEX_INTERIOR):
                left += [struct.unpack_from(">I", page, at)[0] for at in cells.pointers(page) if at <= self.size - 4]
                left.append(struct.unpack_from(">I", page, 8)[0])
        return used


def _row(cell: cells.Cell, schema: Schema) -> "FoundRow | None":
    """Return the row of a cell, with its table. Returns None if no table has as many columns as the cell.

    The row is damaged if no table has matching checksums. Then the result names the first table with as many columns.
    """
    near: FoundRow | None = None
    for table in schema.tables.values():
        if len(cell.values) != len(table.columns):
            continue
        values = cell.values
        if table.rowid is not None:
            values = [*values]
            values[table.rowid] = cell.rowid
        if not table.wrong(values):
            return FoundRow(table, values, True)
        near = near or FoundRow(table, values, False)
    return near


def _bytes_of(path: Path) -> bytes:
    """Return the bytes of a write-ahead log. Reads the log again if SQLite restarts the log meanwhile."""
    for _ in range(10):
        try:
            data = path.read_bytes()
            with path.open("rb") as file:
                if file.read(HEAD) == data[:HEAD]:
                    return data
        except FileNotFoundError:
            return b""
    return data
