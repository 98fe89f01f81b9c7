"""Ports for servers that end and start again.

They are outside the range from which the system takes ports, so no other process gets one while its server is down.
"""

import os
import random
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RANGE = 1_000
_used: set[int] = set()


def quiet_port() -> int:
    """Return a port that nothing listens on. Each call returns another port."""
    low = 20_000 + _WORKER % 10 * _RANGE
    for port in random.SystemRandom().sample(range(low, low + _RANGE), _RANGE):
        with socket.socket() as probe:
            if port not in _used and probe.connect_ex(("127.0.0.1", port)):
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                _used.add(port)
                return port
    raise AssertionError("no port is free")
