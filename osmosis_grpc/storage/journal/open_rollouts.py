"""Keeps the positions of the events, and the sizes, of a journal's unsettled rollouts in memory."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from osmosis_grpc.engine.fair_shares import Shares
from osmosis_grpc.protocol.types import OutcomeSummary, RolloutOutcome

Key = tuple[str, int]
"""A rollout's id and attempt."""


class End(NamedTuple):
    """The columns of a rollout's row that describe its end, in the order of the checksum `end_sum`.

    The default is that of a rollout which has not ended.
    """

    state: str = "ACCEPTED"
    start_time: float | None = None
    end_time: float | None = None
    ended: int | None = None
    """The position of the event Ended."""
    ended_at: float | None = None
    """The time of the end, by the journal's clock."""
    reward: float | None = None
    failure_reason: str | None = None
    failure_summary: str | None = None
    chats: int | None = None
    response_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None

    @classmethod
    def of(
        cls, outcome: RolloutOutcome, *, start_time: float | None, end_time: float, ended: int, ended_at: float
    ) -> "End":
        """Return the columns of an ended rollout."""
        summary = OutcomeSummary.of(outcome)
        return cls(
            outcome.status.value,
            start_time,
            end_time,
            ended,
            ended_at,
            summary.reward,
            summary.failure_reason or None,
            summary.failure_summary or None,
            summary.chats,
            summary.response_tokens,
            summary.prompt_tokens,
            summary.finish_reason or None,
        )


@dataclass(slots=True)
class OpenRollout:
    """A rollout to which events can be appended."""

    sequence: int
    key: Key
    owner: str
    accepted: int
    """The position of its first event."""
    accepted_at: float
    """When it was accepted, by the journal's clock."""
    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    committed: int = 0
    """How many of its events are committed."""
    size: int = 0
    """About how many bytes its events take in the file."""
    start_time: float | None = None
    end: End = End()
    ended: bool = False
    settled: bool = False
    """Whether its last event was appended."""
    settled_at: int = 0
    """The position of the event that has settled it. 0 if no event of this process has."""


class OpenRollouts:
    """The open rollouts by id and attempt, and the bytes of each owner."""

    def __init__(self, budget: int) -> None:
        self.live_size = 0
        """The bytes that all rollouts without an end take in the file."""
        self._budget = budget
        self.by_key: dict[Key, OpenRollout] = {}
        self._sizes = Shares(budget)

    def grow(self, rollout: OpenRollout, size: int) -> None:
        """Add to the size of a rollout."""
        rollout.size += size
        self._sizes.add(rollout.owner, size)
        self.live_size += 0 if rollout.ended else size

    def end(self, rollout: OpenRollout) -> None:
        """Note that a rollout has ended."""
        rollout.ended = True
        self.live_size -= rollout.size

    def close(self, rollout: OpenRollout) -> None:
        """Remove a rollout that gets no further events. Idempotent."""
        if self.by_key.get(rollout.key) is rollout:
            del self.by_key[rollout.key]
            self._sizes.add(rollout.owner, -rollout.size)
            self.live_size -= 0 if rollout.ended else rollout.size

    def has_room(self, owner: str) -> bool:
        """Return True if the total is within the budget, or if the owner uses less than an even share."""
        return self._sizes.total <= self._budget or not self._sizes.has_even_share(owner)
