"""Logs frequent warnings: at most one line in EVERY seconds, with a count of the others."""

import logging
import time
from collections.abc import Callable

EVERY = 10.0
"""Seconds between two warnings."""


class Throttled:
    """Logs the first warning, and then at most one in EVERY seconds, with the number of suppressed ones.

    Use it on one thread. `clock` returns seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
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
