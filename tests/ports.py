"""Ports for servers that end and start again.

They are outside the range from which the system takes ports, so no other process gets one while its server is down.
Test processes that run at the same time have different ports.
"""

import fcntl
import itertools
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_AT_ONCE = 100
_locks: list[IO[str]] = []
"""Each keeps a range of ports from other test processes until this one ends."""


def _own_ports() -> Iterator[int]:
    for start in range(20_000, 32_000, _AT_ONCE):
        lock = Path(tempfile.gettempdir(), f"osmosis-test-ports-{start}").open("w")  # noqa: SIM115 - see _locks
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            _locks.append(lock)
            even = range(start, start + _AT_ONCE, 2)
            yield from random.SystemRandom().sample(even, len(even))


_ports = _own_ports()


def quiet_port() -> int:
    """Return a port that nothing listens on. Each call returns another port.

    No call returns the port after it either, so a server with `--workers 2` can listen there.
    """
    for port in _ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
    raise AssertionError("no port is free")


def quiet_ports(count: int) -> int:
    """Return the first of several ports in a row. No other call returns one of them."""
    assert count <= _AT_ONCE
    return min(itertools.islice(_own_ports(), _AT_ONCE // 2))
