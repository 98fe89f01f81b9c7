"""Raises an error when objects that use gRPC are used in a child of os.fork().

The threads of the parent do not exist in the child, so a call that waits for one would wait forever, and a new gRPC
channel may crash the process. Up to Python 3.13, multiprocessing forks by default on Linux, and so does torch's
DataLoader.
"""

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from weakref import WeakSet

_LIBRARY = sysconfig.get_path("stdlib")


class ForkGuard:
    """Checks that an object is used in the process that opened it. Create one when the object starts to use gRPC."""

    __slots__ = ("__weakref__", "_what", "forked")

    def __init__(self, what: str) -> None:
        self._what = what
        self.forked = bool(_process.forked_at)
        """Whether this process was forked from one that had used gRPC."""
        self.check()
        _process.used = True
        _open.add(self)

    def check(self) -> None:
        """Raise RuntimeError if the process was forked after the object was opened."""
        if self.forked:
            raise RuntimeError(
                f"{self._what} cannot be used in this process, which was forked at {_process.forked_at} after gRPC was "
                "used: threads and connections do not survive a fork. Start processes with multiprocessing's method "
                "spawn: multiprocessing.get_context('spawn'), or DataLoader(..., multiprocessing_context='spawn')"
            )

    def close(self) -> None:
        """Note that the object is closed."""
        _open.discard(self)


_open: "WeakSet[ForkGuard]" = WeakSet()


class _Process:
    forked_at = ""
    """FILE:LINE of the fork that made this process, if gRPC had been used there."""
    used = False
    """Whether gRPC was ever used. Its threads stay when all channels are closed, and a child does not have them."""
    forks = 0
    """How many forks separate this process from the first one."""


_process = _Process()


def forks() -> int:
    """Return a number that differs in every forked child."""
    return _process.forks


def fork_place(frame: FrameType | None) -> str:
    """Return FILE:LINE of the first frame outside Python's own library."""
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(_LIBRARY):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _in_child() -> None:
    _process.forks += 1
    if _process.used:
        _process.forked_at = fork_place(sys._getframe(1))
    for guard in list(_open):
        guard.forked = True


os.register_at_fork(after_in_child=_in_child)
