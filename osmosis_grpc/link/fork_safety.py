"""What a child of this process does not keep: the ports that this process listens at, and the connections there.

An agent may start processes. Those that run another program keep nothing: Python, gRPC and SQLite open their files and
sockets close-on-exec. A child by os.fork() alone (multiprocessing's method "fork") has all of them, and would hold the
ports for as long as it lives, though the server were killed and started again. So the child lets go of these sockets
at once. A journal's lock is left in storage/lock.py. SQLite's files stay open in the child on purpose: they hold no
lock there, and a child that closed them could end the locks and the log of the process that writes.
"""

import logging
import os
import socket
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import FrameType
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

MAX_WARNED = 64
"""Places that fork and are warned of."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_LIBRARY = sysconfig.get_path("stdlib")

_ports: "WeakKeyDictionary[object, int]" = WeakKeyDictionary()
_warned: set[str] = set()


def keep_from_children(server: object, port: int) -> None:
    """A server listens at a port, for as long as it lives or until it is released."""
    _ports[server] = port


def release(server: object) -> None:
    """A server listens no more."""
    _ports.pop(server, None)


def _in_child() -> None:
    ports = set(_ports.values())
    if not ports:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _descriptors():
        if _local_port(fd) in ports:
            with suppress(OSError):
                os.dup2(nothing, fd, inheritable=False)  # its number stays in use: what has it here may still close it
    os.close(nothing)


def _descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return [int(name) for name in os.listdir(folder)]
    return []


def _local_port(fd: int) -> int | None:
    """The local port of a TCP socket; None for anything else."""
    try:
        found = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        return int(found.getsockname()[1]) if found.family in _FAMILIES else None
    except OSError:
        return None
    finally:
        found.detach()


def _in_parent() -> None:
    if not _ports or len(_warned) >= MAX_WARNED:
        return
    place = _place(sys._getframe(1))
    if place not in _warned:
        _warned.add(place)
        log.warning(
            "this process serves, and was forked at %s: the child cannot use gRPC, and shares memory and open "
            "connections with the server. Start processes with subprocess, or with multiprocessing's method spawn",
            place,
        )


def _place(frame: FrameType | None) -> str:
    """FILE:LINE of the first frame outside of Python's own library."""
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(_LIBRARY):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


os.register_at_fork(after_in_child=_in_child, after_in_parent=_in_parent)
