"""Logs one line for each rollout that ended, and a summary every 10 s under load.

A line has only counts, ids, and the first line of a failure's message, but no text that a model wrote.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from osmosis_grpc.protocol.types import Capacity, Failure, OutcomeStatus, RolloutInfo
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

SUMMARY = job("serve.summary", OnFailure.RESTART)

EVERY = 10.0
"""Seconds between two summaries."""
LONGEST_MESSAGE = 300
"""The most characters of a failure's message in a log line."""


class RolloutLog:
    """Logs the results of an engine's rollouts. It is one of the engine's `end_sinks`."""

    def __init__(self) -> None:
        self._ended = self._failed = self._rewarded = 0
        self._rewards = 0.0

    def __call__(self, rollout: RolloutInfo, /) -> None:
        """Log a rollout that ended."""
        outcome = rollout.outcome
        if outcome is None or not log.isEnabledFor(logging.INFO):
            return
        self._ended += 1
        self._failed += outcome.status is not OutcomeStatus.COMPLETED
        reward = outcome.mean_reward
        if reward is not None:
            self._rewarded += 1
            self._rewards += reward
        fields = {
            "rollout_id": rollout.rollout_id,
            "agent_loop": rollout.agent_loop,
            "attempt": rollout.attempt if rollout.attempt > 1 else None,
            "status": outcome.status.value,
            "reward": reward,
            "turns": outcome.metrics.num_llm_calls,
            "tokens": outcome.metrics.response_tokens,
            "seconds": round(outcome.metrics.total_latency_ms / 1000, 3),
            **(_why(outcome.failure) if outcome.failure is not None else {}),
        }
        log.info("rollout ended", extra={name: value for name, value in fields.items() if value is not None})

    def summary(self, capacity: Capacity, seconds: float) -> None:
        """Log the counts of the last `seconds`, unless no rollout ended, runs or waits."""
        if not (self._ended or capacity.running or capacity.queued):
            return
        fields = {
            "running": capacity.running,
            "queued": capacity.queued,
            "ended": self._ended,
            "failed": self._failed,
            "rollouts_per_second": round(self._ended / seconds, 2),
            **({"mean_reward": round(self._rewards / self._rewarded, 4)} if self._rewarded else {}),
        }
        self._ended = self._failed = self._rewarded = 0
        self._rewards = 0.0
        log.info("summary", extra=fields)

    @contextlib.asynccontextmanager
    async def summaries(
        self, capacity: Callable[[], Capacity], supervisor: Supervisor, every: float = EVERY
    ) -> AsyncIterator[None]:
        """Log a summary every few seconds while this context is open, and a last one when it closes."""
        clock = asyncio.get_running_loop().time
        last = clock()

        def summarize() -> None:
            nonlocal last
            now = clock()
            self.summary(capacity(), max(now - last, 0.001))
            last = now

        task = supervisor.every(SUMMARY, every, summarize)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            summarize()


def _why(failure: Failure) -> dict[str, str]:
    """Return the log fields of a failure: its boundary, reason and place, and the first line of its message."""
    first = failure.message.strip().partition("\n")[0].strip()
    cut = first if len(first) <= LONGEST_MESSAGE else first[: LONGEST_MESSAGE - 4] + " ..."
    place = {"at": f"{failure.file}:{failure.line}"} if failure.file else {}
    reason = {"reason": str(failure.reason)} if failure.reason else {}
    return {"boundary": failure.boundary, **reason, "failure": cut, **place}
