"""Disks that are full, and later have space again."""

import resource
import shutil
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


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the disk is broken now, and a descriptor is one of a database on it. */
static int broken(int file) {
    char link[64], path[4096];
    const char *flag = getenv("BROKEN_DISK");
    if (!flag || access(flag, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, ".db") != 0;
}
#define WRAP(type, name, arguments, call) \
    type name arguments { \
        static type (*real) arguments; \
        if (!real) real = (type (*) arguments) dlsym(RTLD_NEXT, #name); \
        if (!broken(file)) return real call; \
        errno = EIO; \
        return -1; \
    }
WRAP(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
WRAP(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
WRAP(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
WRAP(int, fsync, (int file), (file))
WRAP(int, fdatasync, (int file), (file))
WRAP(int, ftruncate64, (int file, off64_t size), (file, size))
"""
"""A library that answers writes to databases with EIO while the file $BROKEN_DISK is there. A process preloads it."""


class Broken:
    """A disk that answers each write with EIO while it is "full". Processes need its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self._flag = folder / "broken"
        source, library = folder / "shim.c", folder / "shim.so"
        source.write_text(SHIM)
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "BROKEN_DISK": str(self._flag)}

    def fill(self, pid: int) -> None:
        self._flag.touch()

    def free(self) -> None:
        self._flag.unlink()


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
