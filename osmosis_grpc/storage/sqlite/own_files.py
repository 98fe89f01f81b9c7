"""Notices that somebody removed, replaced or cut the files of a database that this process writes.

SQLite goes on writing to a removed file, and nobody finds what it writes: it is lost with the process.
"""

import os
from contextlib import suppress
from pathlib import Path


class FilesLost(Exception):
    """A path no longer names the file that this process writes."""


class OwnFiles:
    """The file of a database, its write-ahead log, and the index of the log. Each is known once it is there.

    While a connection is open, SQLite removes none of them, and only a commit of this process makes the file smaller.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path.absolute())
        self._known: dict[str, tuple[int, int]] = {}
        self._size = 0

    def check(self) -> None:
        """Raise FilesLost if one of the files is not the one that it was, or if the first one was cut."""
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
            if path == self._path and found.st_size < self._size:
                raise FilesLost(f"{path} was cut from {self._size} to {found.st_size} bytes: {_ADVICE}")

    def committed(self) -> None:
        """Note that this process has perhaps changed the size of the file."""
        with suppress(FileNotFoundError):  # check() will say so
            self._size = os.stat(self._path).st_size


_ENDS = ("", "-wal", "-shm")
_ADVICE = (
    "what this process writes would be lost, so it stops; stop the process before you move or replace its files, and "
    "exclude this folder from cleaners of old files"
)
