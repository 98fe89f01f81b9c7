"""Logs a warning for a server that cannot be reached, or if all servers drain. Repeats it every few seconds."""

import asyncio
import logging
from collections.abc import Collection

from osmosis_grpc.network.connection_errors import is_permanent
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

WARN = job("trainer.warn_unreached", OnFailure.RESTART)
WARN_DRAINING = job("trainer.warn_draining", OnFailure.RESTART)

EVERY = 5.0
"""Seconds between two warnings of one server."""
REFUSED_EVERY = 60.0
"""Seconds between two warnings about a server that refuses with a permanent error."""


class Unreached:
    """The warnings for one server."""

    def __init__(self, name: str, supervisor: Supervisor) -> None:
        self.name = name
        self._supervisor = supervisor
        self._monotonic = supervisor.system.monotonic
        self._why = "no answer yet"
        self._refused = False
        self._warned: float | None = None
        self._task: asyncio.Task[None] | None = None

    def trying(self) -> None:
        """Start the warnings before a call. The first one follows after some seconds without an answer."""
        if self._task is None:
            self._task = self._supervisor.start(WARN, self._warn_again_and_again)

    def failed(self, error: CallError | None) -> None:
        """Record a failed call. None means that the server ended the connection. Logs a warning if one is due."""
        refused = is_permanent(error)
        due = self._warned is None or self._monotonic() - self._warned >= self._pause or refused != self._refused
        self._why, self._refused = str(error or "it left"), refused
        if due:
            self._warn()

    def reached(self) -> None:
        """Stop the warnings after an answer."""
        self._why, self._refused, self._warned = "no answer yet", False, None
        self.close()

    def close(self) -> None:
        """Stop the warnings."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def _pause(self) -> float:
        return REFUSED_EVERY if self._refused else EVERY

    async def _warn_again_and_again(self) -> None:
        began = self._monotonic()
        while True:
            due = max(began, self._warned or began) + self._pause
            left = due - self._monotonic()
            if left > 0:
                await asyncio.sleep(min(left, EVERY))
            else:
                self._warn()

    def _warn(self) -> None:
        self._warned = self._monotonic()
        if self._refused:
            log.warning("%s; no rollout goes there", self._why)
        else:
            why = self._why.replace(f"server {self.name} ", "it ", 1)
            log.warning("server %s cannot be reached: %s; trying again", self.name, why)


def warn_draining(names: Collection[str], waiting: int) -> None:
    """Log that all reachable servers drain, and how many rollouts wait for one that accepts rollouts."""
    rollouts = "1 rollout waits" if waiting == 1 else f"{waiting} rollouts wait"
    log.warning("all servers drain: %s; %s until one accepts rollouts again", ", ".join(names), rollouts)
