"""Logs frequent warnings. It writes at most one line in EVERY seconds, and counts the other warnings."""

import logging
from collections.abc import Callable

from osmosis_grpc.supervise import SYSTEM

EVERY = 10.0
"""The fewest seconds between two log lines."""


class Throttled:
    """Logs the first warning, and then at most one warning in EVERY seconds.

    A log line has the number of warnings that were suppressed since the line before. Use an instance on one thread
    only. `clock` returns seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = SYSTEM.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._last: float | None = None
        self._held = 0

    def warn(self, text: str) -> None:
        """Logs a warning, or counts it as suppressed."""
        now = self._clock()
        if self._last is not None and now - self._last < EVERY:
            self._held += 1
            return
        more = f" (and {self._held} more since the last such line)" if self._held else ""
        self._last, self._held = now, 0
        self._log.warning("%s%s", text, more)
