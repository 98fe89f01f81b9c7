"""The Store port in memory."""

import sys
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osmosis_grpc.agent.ports import Trajectories
from osmosis_grpc.types import JournaledRollout, TrajectoryEvent, events

T = TypeVar("T")

PAGE = 1024
"""Events of a page."""


@dataclass(slots=True)
class _Kept:
    """One rollout."""

    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    size: int = 0
    ended: bool = False


class MemoryStore:
    """Keeps events in pages, in the order of their positions; a page goes when all of it is forgotten."""

    def __init__(self) -> None:
        self.journal_id = uuid.uuid4().hex
        self.durable = False
        self.problem = ""
        self.committed: Callable[[Sequence[Any], bool], None] = lambda tokens, ok: None
        self.last_position = 0
        self.forgotten_position = 0
        self._newest: list[TrajectoryEvent | None] = [None] * PAGE
        self._pages = {0: self._newest}
        self._left = {0: PAGE - 1}  # positions count from 1
        """How many events of each page are kept, or are still to come."""
        self._rollouts: dict[tuple[str, int], _Kept] = {}
        self.live_size = 0
        """See Store."""

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """Keep an event; that is all there is to a commit here."""
        self.last_position = position = self.last_position + 1
        place = position % PAGE
        if not place:
            self._newest = self._pages[position // PAGE] = [None] * PAGE
            self._left[position // PAGE] = PAGE
        self._newest[place] = event
        key = event.rollout_id, event.attempt
        kept = self._rollouts.get(key)
        if kept is None:
            kept = self._rollouts[key] = _Kept()
        kept.positions.append(position)
        kept.size += size
        if type(event.kind) is events.Ended:
            kept.ended = True
            self.live_size -= kept.size - size
        elif not kept.ended:
            self.live_size += size
        return True

    def barrier(self, then: Callable[[bool], None]) -> None:
        """Nothing is ever on its way."""
        then(True)

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """A rollout's events with numbers above `after`."""
        kept = self._rollouts.get((rollout_id, attempt))
        positions = kept.positions[after : after + limit] if kept else ()
        return [event for position in positions if (event := self._pages[position // PAGE][position % PAGE])]

    def all_events(self, after: int, limit: int) -> Sequence[tuple[int, TrajectoryEvent]]:
        """All rollouts' events with positions above `after`."""
        found: list[tuple[int, TrajectoryEvent]] = []
        for number in self._pages:
            if (number + 1) * PAGE <= after:
                continue
            for position in range(max(after + 1, number * PAGE), (number + 1) * PAGE):
                event = self._pages[number][position % PAGE]
                if event is not None:
                    found.append((position, event))
                    if len(found) == limit:
                        return found
        return found

    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """See Store. Nothing is decoded here, so it is called at once."""
        return read(lambda rollout_id, attempt: self.events(rollout_id, attempt, 0, sys.maxsize))

    def size(self, rollout_id: str, attempt: int) -> int:
        """About how many bytes a rollout takes."""
        kept = self._rollouts.get((rollout_id, attempt))
        return kept.size if kept else 0

    def forget(self, rollout_id: str, attempt: int) -> None:
        """Drop a rollout."""
        kept = self._rollouts.pop((rollout_id, attempt), None)
        if kept is None:
            return
        self.live_size -= 0 if kept.ended else kept.size
        for position in kept.positions:
            number, place = divmod(position, PAGE)
            self._pages[number][place] = None
            self._left[number] -= 1
            if not self._left[number]:
                del self._pages[number], self._left[number]
        self.forgotten_position = max(self.forgotten_position, kept.positions[-1])
