"""Warns about rollouts that run and make no progress: no event, no tool call."""

import logging
import time
from collections.abc import Iterable

from osmosis_grpc.engine.record import Record
from osmosis_grpc.types import RolloutState

log = logging.getLogger(__name__)

MOST_LINES = 10
"""Rollouts that one sweep names; further ones are only counted."""


class Stalls:
    """Logs each stall once. A rollout that made progress since, and stalls again, is logged again."""

    def __init__(self, stalled_after: float) -> None:
        self._limit = stalled_after

    def sweep(self, records: Iterable[Record], now: float) -> None:
        """Log the rollouts that stalled since the last sweep; `now` is monotonic."""
        stalled = [record for record in records if self._stalls(record, now)]
        for record in stalled:
            record.run.stall = record.run.progress
        for record in stalled[:MOST_LINES]:
            activity = record.activity()
            log.warning(
                "rollout %s (agent loop %s, attempt %d) has made no progress for %.0f s; it does: %s, since %s",
                record.rollout_id,
                record.agent_loop,
                record.attempt,
                now - record.run.progress,
                activity.description,
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(activity.since)),
            )
        if len(stalled) > MOST_LINES:
            log.warning("%d more rollouts have made no progress for as long", len(stalled) - MOST_LINES)

    def _stalls(self, record: Record, now: float) -> bool:
        runs = record.state is RolloutState.RUNNING and record.run.termination is None
        return runs and now - record.run.progress >= self._limit and record.run.stall != record.run.progress
