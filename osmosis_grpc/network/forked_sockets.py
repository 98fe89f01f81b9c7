"""Closes the server's sockets in a child made by os.fork(), and warns about the fork.

An agent can start processes. A child process that runs another program keeps no socket, because Python, gRPC and SQLite
open their files and sockets close-on-exec. A child that only forks (multiprocessing's method "fork") inherits all of
them. It would keep the server's ports in use for its whole life, even when the server is killed and started again. So
the child closes the server's sockets at once, and storage/lock_file.py releases the journal's lock in the child.

The child leaves SQLite's files open on purpose. They hold no lock in the child. Closing them in the child could remove
the locks and the write-ahead log of the server.
"""

import logging
import os
import socket
import sys
from contextlib import suppress
from weakref import WeakKeyDictionary

from osmosis_grpc.supervise import fork_place

log = logging.getLogger(__name__)

MAX_WARNED = 64
"""The most warnings. Each line of code that forks causes one warning."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

_places: "WeakKeyDictionary[object, int | str]" = WeakKeyDictionary()
_warned: set[str] = set()


def keep_from_children(server: object, place: int | str) -> None:
    """Register a listening server and its port, or the path of its socket.

    release() or the garbage collection of the server ends this.
    """
    _places[server] = place


def release(server: object) -> None:
    """Remove a server that has stopped listening."""
    _places.pop(server, None)


def _in_child() -> None:
    places = set(_places.values())
    if not places:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _descriptors():
        if _local_place(fd) in places:
            with suppress(OSError):
                os.dup2(
                    nothing, fd, inheritable=False
                )  # the number stays in use, because its owner in the child may close it
    os.close(nothing)


def _descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return [int(name) for name in os.listdir(folder)]
    return []


def _local_place(fd: int) -> int | str | None:
    """Return the local port of a TCP socket or the path of a Unix socket; None for any other descriptor."""
    try:
        found = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        name = found.getsockname()
        return int(name[1]) if found.family in _FAMILIES else name if isinstance(name, str) else None
    except OSError:
        return None
    finally:
        found.detach()


def _in_parent() -> None:
    if not _places or len(_warned) >= MAX_WARNED:
        return
    place = fork_place(sys._getframe(1))
    if place not in _warned:
        _warned.add(place)
        log.warning(
            "this process serves, and was forked at %s: the child cannot use gRPC, and shares memory and open "
            "connections with the server. Start processes with subprocess, or with multiprocessing's method spawn",
            place,
        )


os.register_at_fork(after_in_child=_in_child, after_in_parent=_in_parent)
