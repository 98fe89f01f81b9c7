"""Selects rollouts for a list, by their state and by a few facts of their outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.protocol.types.outcome import OutcomeStatus, RolloutState
from osmosis_grpc.protocol.types.rollout_info import RolloutInfo

_TERMINAL = frozenset(RolloutState(status) for status in OutcomeStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Selects the rollouts of a list. The default selects all rollouts. All times are Unix seconds."""

    states: Sequence[RolloutState] = ()
    """With (), all states are selected."""
    group_id: str = ""
    undelivered: bool = False
    """Selects only ended rollouts whose outcome has not reached the trainer."""
    agent_loop: str = ""
    failure_reasons: Sequence[str] = ()
    """Selects only rollouts that failed for one of these reasons. With (), all rollouts are selected."""
    min_reward: float | None = None
    """Selects only rollouts with a reward of at least this."""
    max_reward: float | None = None
    """Selects only rollouts with a reward of at most this."""
    accepted_after: float | None = None
    """Selects only rollouts that were accepted at this time or later."""
    accepted_before: float | None = None
    """Selects only rollouts that were accepted before this time."""
    forked_from: str = ""
    """Selects only rollouts that fork from the rollout with this id."""
    finish_reason: str = ""
    """Selects only ended rollouts with this finish reason."""
    stalled: float | None = None
    """Selects only unfinished rollouts that have made no progress for this many seconds."""

    @property
    def only_unsettled(self) -> bool:
        """Whether no settled rollout can match: each settled rollout has ended, and its delivery has ended."""
        unfinished = bool(self.states) and _TERMINAL.isdisjoint(self.states)
        return self.undelivered or self.stalled is not None or unfinished

    def matches(self, info: RolloutInfo, now: float) -> bool:
        """Return whether a rollout is selected. `now` counts for `stalled`, and is in Unix seconds."""
        return (
            (not self.states or info.state in self.states)
            and (not self.group_id or (info.group is not None and info.group.id == self.group_id))
            and (not self.undelivered or info.undelivered)
            and (not self.finish_reason or info.finish_reason == self.finish_reason)
            and (not self.agent_loop or info.agent_loop == self.agent_loop)
            and (not self.failure_reasons or info.failure_reason in self.failure_reasons)
            and (self.min_reward is None or (info.reward is not None and info.reward >= self.min_reward))
            and (self.max_reward is None or (info.reward is not None and info.reward <= self.max_reward))
            and (self.accepted_after is None or info.accept_time >= self.accepted_after)
            and (self.accepted_before is None or info.accept_time < self.accepted_before)
            and (not self.forked_from or (info.fork is not None and info.fork.rollout_id == self.forked_from))
            and (self.stalled is None or _stalled(info, now, self.stalled))
        )


EVERY = RolloutFilter()
"""Selects all rollouts."""


def _stalled(info: RolloutInfo, now: float, least: float) -> bool:
    return info.progress_time is not None and now - info.progress_time >= least
