"""Who may run, who waits, who is refused."""

import heapq

from osmosis_grpc.engine.record import Record
from osmosis_grpc.errors import ResourceExhausted

RETRY_AFTER = 1.0
"""What a refused caller is told to wait, in seconds."""


class Admission:
    """Slots and a queue. Rollouts of higher priority leave the queue first, equal ones in order."""

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self.max_concurrent = max_concurrent
        self.max_queued = max_queued
        self.running = 0
        """Slots taken, also by agents that did not stop."""
        self._reserved = 0
        self._heap: list[tuple[int, int, Record]] = []
        self._waiting: set[Record] = set()

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def reserve(self) -> None:
        """Hold a place for a rollout whose acceptance takes time. Raises ResourceExhausted."""
        if self.running + self.queued + self._reserved >= self.max_concurrent + self.max_queued:
            raise ResourceExhausted(
                f"{self.running} rollouts run and {self.queued} wait; "
                f"the limits are {self.max_concurrent} and {self.max_queued}",
                retry_after=RETRY_AFTER,
            )
        self._reserved += 1

    def release(self) -> None:
        """Give back a place that was held."""
        self._reserved -= 1

    def enter(self, record: Record) -> bool:
        """Turn a held place into a slot (true) or a place in the queue (false)."""
        self._reserved -= 1
        if self.running < self.max_concurrent:
            self.running += 1
            return True
        self._waiting.add(record)
        heapq.heappush(self._heap, (-record.init.request.priority, record.sequence, record))
        return False

    def withdraw(self, record: Record) -> None:
        """A waiting rollout waits no longer."""
        self._waiting.discard(record)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [row for row in self._heap if row[2] in self._waiting]
            heapq.heapify(self._heap)

    def leave(self) -> Record | None:
        """Give back a slot. Returns the rollout that takes it over, if one waits."""
        while self._heap:
            record = heapq.heappop(self._heap)[2]
            if record in self._waiting:
                self._waiting.discard(record)
                return record
        self.running -= 1
        return None
