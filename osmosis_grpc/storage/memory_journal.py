"""A Journal in memory. Its content is lost when the process ends."""

import asyncio
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osmosis_grpc.engine.journal_port import Journal, Trajectories
from osmosis_grpc.protocol.types import JournaledRollout, RolloutFilter, TrajectoryEvent, events
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.supervise import SYSTEM, System

T = TypeVar("T")

PAGE = 1024
"""The number of events in a page."""
STEP = 1000
"""The rollouts or events after which a search lets the event loop run other tasks."""
_FREED: list[TrajectoryEvent | None] = [None] * PAGE
"""A page after all its events were forgotten."""


@dataclass(slots=True)
class _Rollout:
    """One rollout and its events."""

    entry: JournaledRollout
    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    size: int = 0
    ended: bool = False


class MemoryJournal(Journal):
    """Keeps events in pages, in the order of their positions. A page is freed when all its events are forgotten."""

    live_size = 0

    def __init__(self, system: System = SYSTEM) -> None:
        super().__init__(system.new_id())
        self._newest: list[TrajectoryEvent | None] = [None] * PAGE
        self._pages = {0: self._newest}
        self._left = {0: PAGE - 1}  # positions begin with 1, so page 0 has one event fewer
        """The number of places in each page that have an event or will get one."""
        self._rollouts: dict[tuple[str, int], _Rollout] = {}
        self._entries: dict[int, JournaledRollout] = {}
        """The entries by sequence, in the order of acceptance."""

    # Writing. Each append is committed at once.

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        self.last_position = position = self.last_position + 1
        index = position % PAGE
        if not index:
            self._newest = self._pages[position // PAGE] = [None] * PAGE
            self._left[position // PAGE] = PAGE
        self._newest[index] = event
        key = event.rollout_id, event.attempt
        if entry is not None:
            self.last_sequence = entry.sequence
            self._entries[entry.sequence] = entry
            rollout = self._rollouts[key] = _Rollout(entry)
        else:
            rollout = self._rollouts[key]
        rollout.positions.append(position)
        rollout.size += size
        if type(event.kind) is events.Ended:
            rollout.ended = True
            self.live_size -= rollout.size - size
        elif not rollout.ended:
            self.live_size += size
        return True

    def barrier(self, then: Callable[[bool], None]) -> None:
        then(True)

    def forget(self, rollout_id: str, attempt: int) -> None:
        rollout = self._rollouts.pop((rollout_id, attempt), None)
        if rollout is None:
            return
        del self._entries[rollout.entry.sequence]
        self.live_size -= 0 if rollout.ended else rollout.size
        for position in rollout.positions:
            page, index = divmod(position, PAGE)
            self._pages[page][index] = None
            self._left[page] -= 1
            if not self._left[page]:
                del self._pages[page], self._left[page]
        self.forgotten_position = max(self.forgotten_position, rollout.positions[-1])

    # Reading.

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        rollout = self._rollouts.get((rollout_id, attempt))
        positions = rollout.positions[after : after + limit] if rollout else ()
        return [event for position in positions if (event := self._pages[position // PAGE][position % PAGE])]

    def annotations(self, rollout_id: str, attempt: int) -> Sequence[TrajectoryEvent]:
        found = self.events(rollout_id, attempt, 0, sys.maxsize)
        return [event for event in found if type(event.kind) is events.Annotated]

    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        after = max(after, next(iter(self._pages)) * PAGE - 1)
        reached = min(self.last_position, after + STEP)
        found: list[tuple[int, TrajectoryEvent]] = []
        for position in range(after + 1, reached + 1):
            event = self._pages.get(position // PAGE, _FREED)[position % PAGE]
            if event is not None and self._rollouts[event.rollout_id, event.attempt].entry.owner == owner:
                found.append((position, event))
                if len(found) == limit:
                    return found, position
        return found, reached

    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """Call `read` at once, because no event must be decoded."""
        return read(lambda rollout_id, attempt: self.events(rollout_id, attempt, 0, sys.maxsize))

    def size(self, rollout_id: str, attempt: int) -> int:
        rollout = self._rollouts.get((rollout_id, attempt))
        return rollout.size if rollout else 0

    async def entries(
        self, owner: str, after: int, limit: int, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> Sequence[JournaledRollout]:
        """Return rollouts of the owner and the group, in all states, because this journal does not know the states."""
        found: list[JournaledRollout] = []
        sequences = list(self._entries)
        if newest_first:
            wanted = sequences[: bisect_left(sequences, after) if after else None][::-1]
        else:
            wanted = sequences[bisect_right(sequences, after) :]
        for count, sequence in enumerate(wanted, 1):
            entry = self._entries.get(sequence)
            if entry is not None and entry.owner == owner:
                group = entry.init.request.group
                if not where.group_id or (group is not None and group.id == where.group_id):
                    found.append(entry)
                    if len(found) == limit:
                        break
            if count % STEP == 0:
                await asyncio.sleep(0)
        return found
