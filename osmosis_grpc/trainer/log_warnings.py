"""Warnings of a trainer that would repeat: about servers that cannot be reached or drain, and about outcomes.

The first outcome from an earlier run and the first untrainable rollout are logged as warnings. Later ones are only
counted, and the totals are logged. If logging is not configured, Python writes the warnings to stderr.
"""

import logging
from collections.abc import Callable, Collection

from osmosis_grpc.network.connection_errors import is_permanent
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.types.outcome import clip, printable

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two warnings about one server."""
REFUSED_EVERY = 60.0
"""Seconds between two warnings about a server that refuses connections with a permanent error."""
RESTART = 30.0
"""A server that has announced a restart is expected back within this many seconds. Its port may be closed meanwhile."""


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
        """Record that the server has answered."""
        self._why, self._refused, self._warned = "no answer yet", False, float("-inf")
        self._restarts_until = float("-inf")

    def failed(self, error: CallError | None) -> None:
        """Record a failed call, and log a warning if one is due. `error` is None if the server ended the connection."""
        refused = is_permanent(error)
        if refused != self._refused:
            self._warned = float("-inf")
        self._why, self._refused = str(error or "it left"), refused
        if error is not None and error.reason == "RESTARTING":
            self._restarts_until = self._monotonic() + RESTART
        self.warn()

    def warn(self) -> None:
        """Log a warning, unless the last one is too recent."""
        now, pause = self._monotonic(), REFUSED_EVERY if self._refused else EVERY
        if now - self._warned < 0.8 * pause:  # a check every EVERY seconds may come a little too early
            return
        self._warned = now
        if self._refused:
            log.warning("%s; no rollout goes there", self._why)
        elif now < self._restarts_until:
            log.warning("server %s restarts; trying again", self.name)
        else:
            why = self._why.replace(f"server {self.name} ", "it ", 1)
            log.warning("server %s cannot be reached: %s; trying again", self.name, why)


def warn_draining(names: Collection[str], waiting: int) -> None:
    """Log that all reachable servers are draining, and how many rollouts wait for a server that accepts them."""
    rollouts = "1 rollout waits" if waiting == 1 else f"{waiting} rollouts wait"
    log.warning("all servers drain: %s; %s until one accepts rollouts again", ", ".join(names), rollouts)


MAX_REASON = 512
"""A warning shows at most this many bytes of a reason."""


class EarlierOutcomes:
    """Counts all outcomes, and those from an earlier run."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._outcomes = self._earlier = self._reported = self._attempt = 0
        self._server_restarted = False
        """Whether the rollout of a counted outcome ended in an earlier process of the server."""
        self._changes: dict[str, str] = {}

    def count(self, outcome: RolloutOutcome) -> None:
        """Count an outcome. Log a warning at the first outcome from an earlier run."""
        self._outcomes += 1
        earlier = outcome.from_journal
        if earlier is None:
            return
        self._earlier += 1
        self._attempt = max(self._attempt, outcome.attempt + 1)
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


class UntrainableOutcomes:
    """Counts the completed rollouts of one trainer, and the untrainable ones among them."""

    def __init__(self) -> None:
        self._completed = self._untrainable = 0
        self._reason = ""
        """The reason of the first untrainable rollout."""

    def count(self, outcome: RolloutOutcome) -> None:
        """Count an outcome. Ignore evaluations, and rollouts that did not complete."""
        if outcome.evaluation or outcome.status is not OutcomeStatus.COMPLETED:
            return
        self._completed += 1
        reason = outcome.not_trainable_reason
        self._untrainable += bool(reason)
        if reason and not self._reason:
            self._reason = printable(clip(reason, MAX_REASON))
            log.warning("rollout %s completed but is not trainable: %s", outcome.rollout_id, self._reason)

    def report(self) -> None:
        """Log the total if more than one rollout was untrainable."""
        if self._untrainable > 1:
            log.warning(
                "%d of %d completed rollouts are not trainable; the first one: %s",
                self._untrainable,
                self._completed,
                self._reason,
            )
