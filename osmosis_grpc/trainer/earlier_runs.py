"""Warns of outcomes that come from an earlier run: at the first, and with the total in the end.

A warning reaches stderr also where logging is not configured: Python's handler of last resort writes it.
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
        """Whether one of them ended in another process of the server."""
        self._changes: dict[str, str] = {}

    def count(self, completion: Completion) -> None:
        """Count an outcome that is handed out; the first one from an earlier run is warned of at once."""
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
        """Warn of what was counted since the last warning, and count anew."""
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
