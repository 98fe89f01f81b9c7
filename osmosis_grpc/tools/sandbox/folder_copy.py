"""Measures and copies the folder of a sandbox. No link is followed. All functions block."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from osmosis_grpc.tools.sandbox.limits import SandboxLimits
from osmosis_grpc.tools.sandbox.port import SandboxError


def is_full(folders: tuple[Path, ...], limits: SandboxLimits) -> bool:
    """Return whether the folders together exceed the limits. Files that disappear meanwhile do not count."""
    count = size = 0
    for folder in folders:
        for _, status in entries(folder):
            count += 1
            size += status.st_blocks * 512
            if count > limits.folder_files or size > limits.folder_bytes:
                return True
    return False


def copy_folder(source: Path, target: Path, limits: SandboxLimits, owner: int | None) -> int:
    """Copy files, folders and links with their permissions and times. Return the bytes of the files.

    Special files are left out. The copies belong to `owner`. Raises SandboxError if the folder exceeds the limits, or a
    part of it cannot be copied.
    """
    count = size = 0
    folders = []
    try:
        for path, status in entries(source, strict=True):
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
                shutil.copyfile(path, copy, follow_symlinks=False)
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


def entries(folder: Path, *, strict: bool = False) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a folder, each folder before its content. `strict` raises the errors of the system."""
    left = [folder]
    while left:
        path = left.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    yield Path(entry.path), status
                    if stat.S_ISDIR(status.st_mode):
                        left.append(Path(entry.path))
        except OSError:
            if strict:
                raise
