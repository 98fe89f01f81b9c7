"""The Store port in memory."""

import uuid
from collections.abc import Sequence

from osmosis_grpc.types import TrajectoryEvent


class MemoryStore:
    """Keeps events in dictionaries; what is forgotten is gone, and with the process everything."""

    def __init__(self) -> None:
        self.journal_id = uuid.uuid4().hex
        self.last_position = 0
        self.forgotten_position = 0
        self._all: dict[int, TrajectoryEvent] = {}
        self._rollouts: dict[tuple[str, int], list[int]] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def append(self, event: TrajectoryEvent, size: int) -> int:
        """Keep an event."""
        key = (event.rollout_id, event.attempt)
        self.last_position += 1
        self._all[self.last_position] = event
        self._rollouts.setdefault(key, []).append(self.last_position)
        self._sizes[key] = self._sizes.get(key, 0) + size
        return self.last_position

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """A rollout's events with numbers above `after`."""
        positions = self._rollouts.get((rollout_id, attempt), [])
        return [self._all[position] for position in positions[after : after + limit]]

    def all_events(self, after: int, limit: int) -> Sequence[tuple[int, TrajectoryEvent]]:
        """All rollouts' events with positions above `after`."""
        found: list[tuple[int, TrajectoryEvent]] = []
        for position in range(after + 1, self.last_position + 1):
            event = self._all.get(position)
            if event is not None:
                found.append((position, event))
                if len(found) == limit:
                    break
        return found

    def size(self, rollout_id: str, attempt: int) -> int:
        """About how many bytes a rollout takes."""
        return self._sizes.get((rollout_id, attempt), 0)

    def forget(self, rollout_id: str, attempt: int) -> None:
        """Drop a rollout."""
        for position in self._rollouts.pop((rollout_id, attempt), []):
            del self._all[position]
            self.forgotten_position = max(self.forgotten_position, position)
        self._sizes.pop((rollout_id, attempt), None)
