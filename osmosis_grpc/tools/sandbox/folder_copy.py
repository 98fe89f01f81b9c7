"""Measures and copies the folder of a sandbox. No link is followed. All functions block."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from osmosis_grpc.tools.reaper import FOLDER, walk
from osmosis_grpc.tools.sandbox.limits import SandboxLimits
from osmosis_grpc.tools.sandbox.port import SandboxError


class _Measured(Exception):
    """Ends a measurement whose result is known."""


class Measurement:
    """Measures folders again and again while programs change them.

    A folder that cannot be read hides its content. The folders count as full if this happens in LOOKS measurements in a
    row, because tests of programs make such folders for a moment. The same holds if folders are moved during every
    measurement.
    """

    LOOKS = 3

    def __init__(self, folders: tuple[Path, ...], limits: SandboxLimits) -> None:
        self._folders, self._limits = folders, limits
        self._hidden = 0
        """How many measurements in a row have not seen everything."""
        self._unseen = False
        self._count = self._size = 0

    def is_full(self) -> bool:
        """Return whether the folders together exceed the limits. Files that disappear meanwhile do not count."""
        self._count = self._size = 0
        self._unseen = False
        try:
            for folder in self._folders:
                top = self._entered(str(folder))
                if top is not None:
                    walk(top, self._measured, self._entered, lambda name, around: None)
        except _Measured:
            return True
        except OSError:
            self._unseen = True
        self._hidden = self._hidden + 1 if self._unseen else 0
        return self._hidden >= self.LOOKS

    def _measured(self, folder: int) -> list[str]:
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:  # the names can be read, but nothing else
                    self._unseen = True
                    continue
                self._count += 1
                self._size += status.st_blocks * 512
                if self._count > self._limits.folder_files or self._size > self._limits.folder_bytes:
                    raise _Measured
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.name)
        return folders

    def _entered(self, name: str, around: int | None = None) -> int | None:
        try:
            return os.open(name, FOLDER, dir_fd=around)
        except (FileNotFoundError, NotADirectoryError):
            return None  # it is gone, or something else is in its place
        except OSError:
            self._unseen = True
            return None


def copy_folder(source: Path, target: Path, limits: SandboxLimits, *, of: int | None, owner: int | None) -> int:
    """Copy files, folders and links with their permissions and times. Return the bytes of the files.

    Special files are left out. Raises SandboxError if the folder exceeds the limits, or a part of it cannot be copied.

    Args:
        source: the folder
        target: an empty folder
        limits: the limits of the sandbox
        of: the user to whom the files have to belong; None for the user of this process
        owner: the user who gets the copies; None for the user of this process
    """
    count = size = 0
    folders = []
    try:
        for path, status in entries(source):
            count += 1
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            limits.check_folder(count, size)
            copy = target / path.relative_to(source)
            if stat.S_ISDIR(status.st_mode):
                copy.mkdir(mode=0o700)
                folders.append((path, copy))
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(path), copy)
            elif stat.S_ISREG(status.st_mode):
                with opened(path, of) as content, open(copy, "xb") as file:
                    shutil.copyfileobj(content, file)
                shutil.copystat(path, copy, follow_symlinks=False)
            else:
                continue
            if owner is not None:
                os.chown(copy, owner, owner, follow_symlinks=False)
        for path, copy in reversed(folders):  # a folder may lose its write permission after its files are there
            shutil.copystat(path, copy)
    except OSError as error:
        raise SandboxError(f"the working folder cannot be copied: {error}") from None
    return size


def opened(path: Path, of: int | None) -> IO[bytes]:
    """Open a file that has to belong to a user; see copy_folder(). Raises OSError and SandboxError.

    A program can make a hard link to a file of another user that it cannot read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != (os.geteuid() if of is None else of):
        os.close(descriptor)
        raise SandboxError(f"the working folder cannot be copied: {path.name} belongs to another user")
    return open(descriptor, "rb")


def entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a folder, each folder before its content. Raises OSError for what cannot be read."""
    left = [folder]
    while left:
        path = left.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield Path(entry.path), status
                if stat.S_ISDIR(status.st_mode):
                    left.append(Path(entry.path))
