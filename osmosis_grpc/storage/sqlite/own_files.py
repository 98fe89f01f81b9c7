"""Notices when somebody removes, replaces or truncates the files of a database that this process writes.

SQLite goes on writing to a removed file, and everything that it writes is lost when the process ends.
"""

import os
import sqlite3
from pathlib import Path


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
