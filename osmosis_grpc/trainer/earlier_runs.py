"""Logs a warning for the first outcome that comes from an earlier run, and the total at the end.

The warning reaches stderr without logging configuration, too: Python's handler of last resort writes it.
"""

import logging

from osmosis_grpc.types import Completion

log = logging.getLogger(__name__)


class EarlierOutcomes:
    """Counts outcomes, and those from an earlier run among them."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._outcomes = self._earlier = self._reported = self._attempt = 0
        self._server_restarted = False
        """Whether one of them ended in an earlier process of the server."""
        self._changes: dict[str, str] = {}

    def count(self, completion: Completion) -> None:
        """Count an outcome. Logs a warning at the first one from an earlier run."""
        self._outcomes += 1
        earlier = completion.from_journal
        if earlier is None:
            return
        self._earlier += 1
        self._attempt = max(self._attempt, completion.attempt + 1)
        self._server_restarted |= not earlier.same_process
        change = earlier.describe_change()
        if change:
            self._changes[earlier.agent_loop] = change
        if self._earlier == 1:
            self._warn()

    def report(self) -> None:
        """Log the total if it has grown since the last warning, and start again at zero."""
        if self._earlier > self._reported:
            self._warn()
        self._begin()

    def _warn(self) -> None:
        self._reported = self._earlier
        log.warning(
            "%d of %d outcomes came from an earlier run of the %s; use new ids or attempt=%d to run them again%s",
            self._earlier,
            self._outcomes,
            "server" if self._server_restarted else "trainer",
            self._attempt,
            "".join(f"; {change}" for change in self._changes.values()),
        )
