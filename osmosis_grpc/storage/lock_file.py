"""A lock file that allows one process at a time.

The file contains the id of the process that holds the lock and, if that process is stopping, the time by which it will
have ended. The lock ends with the process.
"""

import fcntl
import os
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class Locked(Exception):
    """Another holder has the lock. The text is its process id or "of unknown id", to follow "process" in a message."""


class LockLost(Exception):
    """The lock's file was removed or replaced, so another process can hold a lock of the same name."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, according to the lock's file."""

    process: int = 0
    """The id of the process; 0 if unknown."""
    until: float = 0.0
    """The Unix time at which a process that is stopping will have ended; 0 for a process that is not stopping."""

    def __str__(self) -> str:
        return f"{self.process or 'of unknown id'}{' (this one)' * (self.process == os.getpid())}"

    @classmethod
    def read(cls, file: int) -> "Holder":
        """Read the holder from an open file."""
        try:
            process, *until = map(int, os.pread(file, 32, 0).split())
        except ValueError:
            return cls()
        return cls(process, *until[:1])

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, so that only its children can still hold the lock."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return self.process > 0
        except OSError:
            pass
        return False


class Lock:
    """Holds the lock until close() or the end of the process. Raises Locked, OSError.

    A forked child of the process does not hold the lock. A program that this process starts can share it: the process
    passes the `descriptor`, and the program calls share().
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.shared = self.path in _shared
        if self.shared:
            self._file = _shared.pop(self.path)
            _held.add(self)
            return
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except OSError as error:
            holder = Holder.read(self._file)
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise
            raise Locked(str(holder)) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)
        _held.add(self)

    def _take(self) -> None:
        for pause in PAUSES:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(pause)
            else:
                return
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def check(self) -> None:
        """Raise LockLost if the path no longer names the locked file."""
        mine = os.fstat(self._file)
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise LockLost(f"the lock {self.path} was removed: {_OTHERS}") from None
        if (found.st_ino, found.st_dev) != (mine.st_ino, mine.st_dev):
            raise LockLost(f"the lock {self.path} was replaced: {_OTHERS}")

    def stop_by(self, until: float) -> None:
        """Record that this process will have ended at this Unix time, so that the next one can wait for it."""
        with suppress(OSError):
            os.pwrite(self._file, f"{os.getpid()} {until:.0f}".encode(), 0)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file."""
        return self._file

    def close(self) -> None:
        """Release the lock, unless another process shares it with this one. Idempotent."""
        if self._file >= 0 and not self.shared:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # necessary if a forked child still has the file open
        self.leave()

    def leave(self) -> None:
        """Close the file, but do not release the lock. A forked child calls this, because its parent holds the lock."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def share(path: Path, descriptor: int) -> None:
    """Make the next Lock of this path share the lock of the process that has passed its descriptor to this one."""
    os.set_inheritable(descriptor, False)
    _shared[path.absolute()] = descriptor


def stop_by(path: Path, until: float) -> None:
    """Do the same for the lock at a path, if this process holds it and shares it with no other process."""
    for lock in list(_held):
        if lock.path == path.absolute() and not lock.shared:
            lock.stop_by(until)


def is_held(path: Path) -> bool | None:
    """Return whether a process holds the lock; None if this cannot be determined. Creates no file.

    The check takes a shared lock for a moment. A Lock that is taken at this moment waits for it, see PAUSES.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


def holder_of(path: Path) -> Holder:
    """Return the holder of a lock that is held."""
    with open(path, "rb") as file:
        return Holder.read(file.fileno())


PAUSES = (0.002, 0.01, 0.02)
"""Seconds before each further try to take a lock that another process has, which may only be in is_held()."""
_OTHERS = "another process may write here now, so this one stops; exclude this folder from cleaners of old files"
_shared: dict[Path, int] = {}
"""The descriptors of locks that another process shares with this one."""
_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _forked() -> None:
    for lock in list(_held):
        with suppress(OSError):
            lock.leave()


os.register_at_fork(after_in_child=_forked)
