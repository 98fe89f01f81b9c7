"""Measures the folders of a sandbox while programs change them. No link is followed. All functions block."""

import errno
import os
import stat
from pathlib import Path

from osmosis_grpc.tools.sandbox.limits import SandboxLimits

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN = 16
"""A measurement keeps about this many folders open."""


class _Full(Exception):
    """Ends a measurement whose result is known."""


class _Level:
    """A folder on the path of a measurement, and the folders in it that are still to be visited."""

    def __init__(self, name: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.name, self.descriptor = name, descriptor
        self.identity = status.st_dev, status.st_ino
        self.folders: list[str] = []

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class Measurement:
    """Measures folders repeatedly while programs change them.

    The content of an unreadable folder cannot be measured. Tests of programs make such folders for a moment, so the
    folders count as full only after LOOKS incomplete measurements in a row. The same applies if folders are moved
    during every measurement.
    """

    LOOKS = 3

    def __init__(self, folders: tuple[Path, ...], limits: SandboxLimits) -> None:
        self._folders, self._limits = folders, limits
        self._hidden = 0
        """The number of incomplete measurements in a row."""
        self._unseen = False
        self._count = self._size = 0

    def is_full(self) -> bool:
        """Return whether the folders together exceed the limits. Files that disappear meanwhile do not count."""
        self._count = self._size = 0
        self._unseen = False
        try:
            for folder in self._folders:
                self._measure(str(folder))
        except _Full:
            return True
        except OSError:
            self._unseen = True
        self._hidden = self._hidden + 1 if self._unseen else 0
        return self._hidden >= self.LOOKS

    def _measure(self, folder: str) -> None:
        """Measure a folder and all folders below it. Raises OSError if a program moves a folder meanwhile.

        Each folder is opened from its parent, so a path can have any length. A parent that was closed is opened again
        from its child.
        """
        path: list[_Level] = []
        try:
            self._enter(folder, None, path)
            while path:
                here = path[-1]
                if here.folders:
                    self._enter(here.folders.pop(), here.descriptor, path)
                    if len(path) > OPEN:
                        path[-OPEN - 1].close()
                    continue
                around = path[-2] if len(path) > 1 else None
                if around is not None and around.descriptor < 0:
                    around.descriptor = os.open("..", _FOLDER, dir_fd=here.descriptor)
                    if _Level("", around.descriptor).identity != around.identity:
                        raise OSError(errno.ESTALE, "a folder was moved", here.name)
                path.pop().close()
        finally:
            for level in path:
                level.close()

    def _enter(self, name: str, around: int | None, path: list[_Level]) -> None:
        """Count what is in a folder, and append the folder to the path, unless it cannot be opened."""
        try:
            path.append(_Level(name, os.open(name, _FOLDER, dir_fd=around)))
        except (FileNotFoundError, NotADirectoryError):
            return  # it is gone or was replaced
        except OSError:
            self._unseen = True
            return
        with os.scandir(path[-1].descriptor) as entries:
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
                    raise _Full
                if stat.S_ISDIR(status.st_mode):
                    path[-1].folders.append(entry.name)
