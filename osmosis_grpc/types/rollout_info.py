"""The state of rollouts on a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from osmosis_grpc.types.completion import Completion, RolloutState
from osmosis_grpc.types.earlier_run import EndedBy
from osmosis_grpc.types.fast_init import fast_init
from osmosis_grpc.types.requests import Group, InitRequest
from osmosis_grpc.types.tools import ToolDict


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rollout does, and since when (Unix seconds)."""

    description: str
    since: float


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
    last_number: int = 0
    """The number of its newest event."""
    undelivered: bool = False
    """Whether it has ended and its completion has not reached the trainer."""
    completion: Completion | None = None
    """Its result; None before the end, and in lists."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRollout:
    """A rollout in a journal, with everything that another process needs to continue it."""

    init: InitRequest
    tools: Sequence[ToolDict]
    owner: str
    attachment_id: str
    """The attachment for its calls; empty for a callback."""
    sequence: int
    """Its position in the order of acceptance."""
    agent_loop: str
    accept_time: float
    """Unix seconds."""
    start_time: float | None = None
    end_time: float | None = None
    state: RolloutState = RolloutState.ACCEPTED
    """ACCEPTED before its start, RUNNING after it, or the state that it ended in."""
    completion: Completion | None = None
    ended_by: EndedBy = EndedBy()
    undelivered: bool = False
    settled: bool = False
    """Whether no further event is possible."""
    last_number: int = 0
    """The number of its newest committed event."""
    damage: str = ""
    """The damage of its rows; empty for none. A damaged rollout ends FAILED; only ids, owner and callback are used."""
    accepted_at: float = 0.0
    """Seconds of the journal's clock, which stops while no process has the journal open."""
    deaths: int = 0
    """How often the server's process has died while its agent ran, since its last new reply."""


@dataclass(frozen=True, slots=True)
class CancelResult:
    """What a cancel did to one rollout."""

    rollout_id: str
    attempt: int = 0
    """0 if the rollout is unknown."""
    disposition: Literal["CANCELLED", "ALREADY_ENDED", "UNKNOWN"] = "UNKNOWN"
    state: RolloutState | None = None
    """The rollout's state; None if it is unknown."""

    @property
    def cancelled(self) -> bool:
        """Whether the rollout ends by this cancel."""
        return self.disposition == "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a server, and its rollouts."""

    max_concurrent: int
    max_queued: int
    running: int = 0
    queued: int = 0
    abandoned: int = 0
    """Ended rollouts whose agent did not stop; each keeps its slot until the agent stops."""
    undelivered: int = 0
    expired: int = 0
    """Completions that expired undelivered since the start."""
    completed: int = 0
    """Rollouts that ended since the start, also those that were evicted."""
