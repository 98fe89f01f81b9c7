"""Limits frequent warnings to one log line in EVERY seconds, and counts the others."""

import logging
from collections.abc import Callable

from osmosis_grpc.supervise import SYSTEM

EVERY = 10.0
"""The fewest seconds between two log lines."""


class Throttled:
    """Logs the first warning, and then at most one warning in EVERY seconds.

    Each line says how many warnings were suppressed since the previous one. Use an instance on one thread only.
    `clock` returns seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = SYSTEM.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._last: float | None = None
        self._held = 0

    def warn(self, text: str, *, at_once: bool = False) -> None:
        """Log a warning or, if it comes too soon and not `at_once`, count it as suppressed."""
        now = self._clock()
        if not at_once and self._last is not None and now - self._last < EVERY:
            self._held += 1
            return
        more = f" (and {self._held} more since the last such line)" if self._held else ""
        self._last, self._held = now, 0
        self._log.warning("%s%s", text, more)

    def report(self, text: str) -> None:
        """Log how many warnings were suppressed since the last line, if any. `text` has a %d for the number."""
        if self._held:
            self._log.warning(text, self._held)
            self._held = 0
