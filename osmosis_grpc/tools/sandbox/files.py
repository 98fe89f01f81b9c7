"""Reads and writes files below a folder. No path leads out of it, even while a program changes its folders.

Each folder of a path is opened from the one before, and no link is followed. All functions block.
"""

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osmosis_grpc.tools.sandbox.port import LISTED, FileInfo, SandboxFileError, SandboxLost

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_AHEAD = 3600
"""If the time of a file is further ahead than this many seconds, a program has set it on purpose."""
_LINKS = {
    errno.ELOOP: "it is a symbolic link, or goes over one; name the file itself",
    errno.ENOTDIR: "a file or a symbolic link is in the place of a folder",
}

_OF_THE_MACHINE = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS}
"""The errors that do not depend on the model's path."""


def confined(path: str, shown: str) -> list[str]:
    """Return the names of a path below a folder that programs see as `shown`. Raises SandboxFileError."""
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("null character")
    except ValueError:  # or a character that cannot be encoded
        raise SandboxFileError(f"path: {path!r} has a character that no path has") from None
    normal = posixpath.normpath(posixpath.join(shown, path))
    if normal != shown and not normal.startswith(shown.rstrip("/") + "/"):
        raise SandboxFileError(f"path: {path} is outside of the working folder {shown}; give a path below it")
    return [name for name in normal[len(shown) :].split("/") if name]


def _make_newer(descriptor: int, old: os.stat_result) -> None:
    """If a file and the one that it replaces were changed in the same second, move its time to the next second.

    Programs with caches mistake a file with equal size and second for the old one.
    """
    second = old.st_mtime_ns // 10**9
    if 0 <= second - os.fstat(descriptor).st_mtime_ns // 10**9 < MOST_AHEAD:
        os.utime(descriptor, ns=(old.st_atime_ns, (second + 1) * 10**9))


class Files:
    """The files below a folder. `owner` is the user that owns them, and `shown` is the folder as programs see it."""

    def __init__(self, root: Path, shown: str, owner: int | None) -> None:
        self._root, self._shown = root, shown
        self._owner = os.geteuid() if owner is None else owner

    def read(self, path: str, most: int) -> bytes:
        """Return the content of a file."""
        *folders, name = self._names(path)
        with self._errors(path), self._opened(folders) as parent:
            descriptor = os.open(name, _FILE, dir_fd=parent)
            with os.fdopen(descriptor, "rb") as file:
                self._check_file(path, os.fstat(descriptor))
                data = file.read(most + 1)
        if len(data) > most:
            raise SandboxFileError(f"{path} has more than {most} bytes")
        return data

    def write(self, path: str, data: bytes, most: int) -> None:
        """Write a file under a temporary name, and rename it. Its time is in a later second than the old file's."""
        if len(data) > most:
            raise SandboxFileError(f"{path} would have {len(data)} bytes; at most {most} are permitted")
        *folders, name = self._names(path)
        with self._errors(path), self._opened(folders, make=True) as parent:
            old = self._old(path, name, parent)
            temporary = f".osmosis-{secrets.token_hex(8)}"
            descriptor = os.open(temporary, _NEW, 0o600, dir_fd=parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    self._own(descriptor)
                    os.fchmod(descriptor, 0o644 if old is None else stat.S_IMODE(old.st_mode) & 0o777)
                    file.write(data)
                    file.flush()
                    if old is not None:
                        _make_newer(descriptor, old)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                os.unlink(temporary, dir_fd=parent)
                raise

    def remove(self, path: str) -> None:
        """Remove a file."""
        *folders, name = self._names(path)
        with self._errors(path), self._opened(folders) as parent:
            self._check_file(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
            os.unlink(name, dir_fd=parent)

    def listed(self, path: str, depth: int) -> list[FileInfo]:
        """Return the files and folders of a folder and of its folders, or the file itself, sorted by path."""
        names = confined(path, self._shown)
        found: list[FileInfo] = []
        with self._errors(path):
            if names:
                with self._opened(names[:-1]) as parent:
                    status = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    return [FileInfo("/".join(names), False, status.st_size)]
            with self._opened(names) as folder:
                for info in self._walk(folder, "/".join(names), depth):
                    found.append(info)
                    if len(found) == LISTED:
                        break
        return sorted(found, key=lambda info: info.path)

    def check_folder(self, path: str) -> str:
        """Return a folder as programs see it."""
        names = confined(path, self._shown)
        with self._errors(path), self._opened(names):
            return posixpath.join(self._shown, *names)

    def _walk(self, folder: int, path: str, depth: int) -> Iterator[FileInfo]:
        for name in sorted(os.listdir(folder)):
            below = f"{path}/{name}" if path else name
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue  # a program has removed it
            if stat.S_ISREG(status.st_mode):
                yield FileInfo(below, False, status.st_size)
            elif stat.S_ISDIR(status.st_mode):
                yield FileInfo(below, True)
                if depth > 1:
                    try:
                        inner = os.open(name, _FOLDER, dir_fd=folder)
                    except OSError:
                        continue
                    try:
                        yield from self._walk(inner, below, depth - 1)
                    finally:
                        os.close(inner)

    def _names(self, path: str) -> list[str]:
        names = confined(path, self._shown)
        if not names:
            raise SandboxFileError(f"path: {path} is the working folder; name a file in it")
        return names

    @contextmanager
    def _opened(self, folders: list[str], *, make: bool = False) -> Iterator[int]:
        descriptor = os.open(self._root, _FOLDER)
        try:
            for name in folders:
                inner = self._inner(name, descriptor, make)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _inner(self, name: str, folder: int, make: bool) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(name, 0o755, dir_fd=folder)
        inner = os.open(name, _FOLDER, dir_fd=folder)
        self._own(inner)
        return inner

    def _own(self, descriptor: int) -> None:
        if self._owner != os.geteuid():
            os.fchown(descriptor, self._owner, self._owner)

    def _old(self, path: str, name: str, parent: int) -> os.stat_result | None:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self._check_file(path, status)
        return status

    def _check_file(self, path: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            raise SandboxFileError(f"{path} is a symbolic link; name the file itself")
        if stat.S_ISDIR(status.st_mode):
            raise SandboxFileError(f"{path} is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise SandboxFileError(f"{path} is not a file")
        if status.st_uid != self._owner:  # a hard link to a file outside
            raise SandboxFileError(f"{path} belongs to another user")

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise SandboxFileError(f"{path} does not exist") from None
        except OSError as error:
            if error.errno in _OF_THE_MACHINE:
                raise SandboxLost(f"{path}: {error.strerror}") from None
            raise SandboxFileError(f"{path}: {_LINKS.get(error.errno or 0, error.strerror)}") from None
