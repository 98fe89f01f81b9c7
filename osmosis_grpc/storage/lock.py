"""One process for a file or a folder: a lock that names its holder and dies with it."""

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path


class Locked(Exception):
    """Somebody else holds the lock. `holder` follows "in use by process": an id, or that it is not known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class LockLost(Exception):
    """The lock's file was removed or replaced, so another process may hold a lock of the same name by now."""


class Lock:
    """Held from its making to close(), or to the process's end, however that comes. Raises Locked, OSError.

    A child that the process forks does not hold it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "of unknown id"
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise
            raise Locked(f"{holder} (this one)" if holder == str(os.getpid()) else holder) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)
        _held.add(self)

    def check(self) -> None:
        """Raise LockLost when the path no longer leads to the file that is locked."""
        mine = os.fstat(self._file)
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            raise LockLost(f"the lock {self._path} was removed: {_OTHERS}") from None
        if (found.st_ino, found.st_dev) != (mine.st_ino, mine.st_dev):
            raise LockLost(f"the lock {self._path} was replaced: {_OTHERS}")

    def close(self) -> None:
        """Let others in. Idempotent."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may not have come to leave it yet
            self.leave()

    def leave(self) -> None:
        """In a forked child: the lock is the parent's, and ends with it."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_OTHERS = "another process may write here now, so this one stops; let no cleaner of old files touch this folder"
_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forked() -> None:
    for lock in list(_held):
        with suppress(OSError):
            lock.leave()


os.register_at_fork(after_in_child=_forked)
