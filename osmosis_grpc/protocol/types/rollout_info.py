"""The state of rollouts on a server, and the filter of a list of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from osmosis_grpc.protocol.types.earlier_run import EndedBy
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.messages import ToolDict
from osmosis_grpc.protocol.types.outcome import OutcomeStatus, RolloutOutcome, RolloutState, clip
from osmosis_grpc.protocol.types.requests import Fork, Group, InitRequest


@dataclass(frozen=True, slots=True)
class Activity:
    """The current activity of a rollout, and the time when it began, in Unix seconds."""

    description: str
    start_time: float


MAX_SUMMARY = 200
"""The most characters of a text of an OutcomeSummary."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSummary:
    """The facts of an outcome that lists show."""

    reward: float | None = None
    """The reward. If the outcome has none of its own, the mean of its samples' rewards. None without a reward."""
    failure_reason: str = ""
    """The reason of its Failure; empty without a failure."""
    failure_summary: str = ""
    """The first line of the Failure's message, at most MAX_SUMMARY characters; empty without a failure."""
    chats: int = 0
    """The number of answered chats."""
    response_tokens: int = 0
    prompt_tokens: int = 0
    """The sum of the lengths of all prompts. A token counts in each chat whose prompt has it."""
    finish_reason: str = ""
    """The outcome's finish reason, at most MAX_SUMMARY characters."""

    @classmethod
    def of(cls, outcome: RolloutOutcome) -> "OutcomeSummary":
        """Return the summary of an outcome."""
        failure, metrics = outcome.failure, outcome.metrics
        lines = failure.message.strip().splitlines() if failure is not None else []
        return cls(
            reward=outcome.mean_reward,
            failure_reason=str(failure.reason) if failure is not None else "",
            failure_summary=clip(lines[0][:MAX_SUMMARY]) if lines else "",
            chats=metrics.num_llm_calls,
            response_tokens=metrics.response_tokens,
            prompt_tokens=metrics.prompt_tokens,
            finish_reason=clip(outcome.finish_reason[:MAX_SUMMARY]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInfo:
    """The state of a rollout."""

    rollout_id: str
    attempt: int
    agent_loop: str
    state: RolloutState
    activity: Activity
    group: Group | None = None
    accept_time: float
    """Unix seconds."""
    start_time: float | None = None
    end_time: float | None = None
    last_event_number: int = 0
    """The number of its newest event."""
    undelivered: bool = False
    """Whether the rollout has ended and its outcome has not reached the trainer."""
    outcome: RolloutOutcome | None = None
    """The result of the rollout. It is None before the end, and in lists of rollouts."""
    reward: float | None = None
    """This and the next six are those of OutcomeSummary. Before the end, the three counts are those so far."""
    failure_reason: str = ""
    failure_summary: str = ""
    chats: int = 0
    response_tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str = ""
    progress_time: float | None = None
    """The time of the newest event or tool call, in Unix seconds. None after the end."""
    fork: Fork | None = None
    """The recorded chat from which the rollout forks; None if it is not a fork."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRollout:
    """A rollout in a journal, with everything that another process needs to continue it."""

    init: InitRequest
    tools: Sequence[ToolDict]
    owner: str
    attachment_id: str
    """The attachment to the rollout's trainer; empty for a rollout with a callback."""
    sequence: int
    """The rollout's position in the order of acceptance."""
    agent_loop: str
    accept_time: float
    """Unix seconds."""
    start_time: float | None = None
    end_time: float | None = None
    state: RolloutState = RolloutState.ACCEPTED
    """ACCEPTED before the start, RUNNING after the start, or the state in which the rollout ended."""
    outcome: RolloutOutcome | None = None
    summary: OutcomeSummary = OutcomeSummary()
    """The summary of the outcome, also if `outcome` was not read."""
    ended_by: EndedBy = EndedBy()
    settled: bool = False
    """Whether no further event is possible."""
    last_event_number: int = 0
    """The number of its newest committed event."""
    damage: str = ""
    """The damage of the rollout's rows in the journal; empty if there is no damage.

    A damaged rollout ends FAILED. Then only its ids, its owner and its callback are used."""
    accepted_at: float = 0.0
    """The time of the acceptance, by the journal's clock. This clock stops while no process has the journal open."""
    deaths: int = 0
    """The number of times that the server's process died while the agent ran. A new reply sets it to 0."""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The effect of a cancel on one rollout."""

    rollout_id: str
    attempt: int = 0
    """0 if the rollout is unknown."""
    disposition: Literal["CANCELLED", "ALREADY_ENDED", "UNKNOWN"] = "UNKNOWN"
    state: RolloutState | None = None
    """The rollout's state; None if it is unknown."""

    @property
    def cancelled(self) -> bool:
        """Whether this cancel ends the rollout."""
        return self.disposition == "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a server, and its rollouts."""

    max_concurrent: int
    max_queued: int
    running: int = 0
    queued: int = 0
    abandoned: int = 0
    """Ended rollouts with an agent that did not stop. Each keeps its slot until its agent stops."""
    undelivered: int = 0
    expired: int = 0
    """The number of outcomes that expired before their delivery, since the server's start."""
    completed: int = 0
    """The number of rollouts that ended since the server's start. Evicted rollouts count, too."""


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
