"""Logs rollouts that run and make no progress."""

import logging
import time
from collections.abc import Iterable

from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.types import RolloutState

log = logging.getLogger(__name__)

MOST_LINES = 10
"""The largest number of stalled rollouts that one sweep names. Further stalled rollouts are only counted."""


def warn_of_stalls(records: Iterable[Record], now: float, stalled_after: float) -> None:
    """Log each rollout that has had no event and no tool call for `stalled_after` seconds. `now` is monotonic.

    Each stall is logged once. If a rollout makes progress and then stalls again, it is logged again.
    """
    stalled = [
        record
        for record in records
        if record.state is RolloutState.RUNNING
        and record.run.termination is None
        and now - record.run.progress >= stalled_after
        and record.run.stall != record.run.progress
    ]
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
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(activity.start_time)),
        )
    if len(stalled) > MOST_LINES:
        log.warning("%d more rollouts have made no progress for as long", len(stalled) - MOST_LINES)
