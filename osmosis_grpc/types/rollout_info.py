"""A rollout as its server knows it, for whoever asks."""

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
    """What a rollout is doing, and since when (Unix seconds)."""

    description: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInfo:
    """Where a rollout stands."""

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
    """Ended, and its completion has not reached the trainer."""
    completion: Completion | None = None
    """Its result, once there is one; left out of lists."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledRollout:
    """A rollout as a journal keeps it: what has to be known to go on with it in another process."""

    init: InitRequest
    tools: Sequence[ToolDict]
    owner: str
    attachment_id: str
    """Of the attachment that its calls go to; empty for a callback."""
    sequence: int
    """Its place in the order of acceptance."""
    agent_loop: str
    accept_time: float
    """Unix seconds."""
    start_time: float | None = None
    end_time: float | None = None
    state: RolloutState = RolloutState.ACCEPTED
    """ACCEPTED while it has not begun, RUNNING while it has, or how it ended."""
    completion: Completion | None = None
    ended_by: EndedBy = EndedBy()
    undelivered: bool = False
    settled: bool = False
    """No further event is possible."""
    last_number: int = 0
    """Of its newest committed event."""
    damage: str = ""
    """What of it is not what was written; then only its ids, owner and callback are used, and it ends FAILED."""
    accepted_at: float = 0.0
    """By the journal's clock, which stands still while no process has the journal."""
    deaths: int = 0
    """How often the server's process died while its agent ran, since its last new reply."""


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
    """What a server can take and what it has."""

    max_concurrent: int
    max_queued: int
    running: int = 0
    queued: int = 0
    abandoned: int = 0
    """Ended rollouts whose agent did not stop; each keeps its slot until it does."""
    undelivered: int = 0
    expired: int = 0
    """Completions given up since the start because their time was up."""
    completed: int = 0
    """Rollouts that ended since the start, whatever is still known of them."""
