"""Disks that are full, and later have space again."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Limited:
    """A process whose files cannot grow while it is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pid = 0

    def fill(self, pid: int) -> None:
        self._pid = pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def free(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Small:
    """A file system of 4 MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self._ballast = folder / "ballast"

    def fill(self, pid: int) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Small]:
    """Skip the test if this user cannot mount file systems."""
    with mounted(folder, "-t", "tmpfs", "-o", "size=4m", "none"):
        yield Small(folder)


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    received = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if received.returncode:
        pytest.skip(f"may not mount: {received.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
