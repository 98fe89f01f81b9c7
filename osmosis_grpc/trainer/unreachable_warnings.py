"""Logs a warning for a server that cannot be reached, or if all servers drain. Repeats it every few seconds."""

import logging
from collections.abc import Callable, Collection

from osmosis_grpc.network.connection_errors import is_permanent
from osmosis_grpc.protocol.errors import CallError

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two warnings of one server."""
REFUSED_EVERY = 60.0
"""Seconds between two warnings about a server that refuses with a permanent error."""


class Unreached:
    """The warnings for one server.

    Args:
        name: The server's target.
        monotonic: Returns the time.
    """

    def __init__(self, name: str, monotonic: Callable[[], float]) -> None:
        self.name = name
        self._monotonic = monotonic
        self.reached()

    def reached(self) -> None:
        """Note that the server has answered."""
        self._why, self._refused, self._warned = "no answer yet", False, float("-inf")

    def failed(self, error: CallError | None) -> None:
        """Note a failed call, and warn if it is time. None means that the server ended the connection."""
        refused = is_permanent(error)
        if refused != self._refused:
            self._warned = float("-inf")
        self._why, self._refused = str(error or "it left"), refused
        self.warn()

    def warn(self) -> None:
        """Log a warning, unless the last one was just now."""
        now, pause = self._monotonic(), REFUSED_EVERY if self._refused else EVERY
        if now - self._warned < 0.8 * pause:  # a look every EVERY seconds may come a little too early
            return
        self._warned = now
        if self._refused:
            log.warning("%s; no rollout goes there", self._why)
        else:
            why = self._why.replace(f"server {self.name} ", "it ", 1)
            log.warning("server %s cannot be reached: %s; trying again", self.name, why)


def warn_draining(names: Collection[str], waiting: int) -> None:
    """Log that all reachable servers drain, and how many rollouts wait for one that accepts rollouts."""
    rollouts = "1 rollout waits" if waiting == 1 else f"{waiting} rollouts wait"
    log.warning("all servers drain: %s; %s until one accepts rollouts again", ", ".join(names), rollouts)
