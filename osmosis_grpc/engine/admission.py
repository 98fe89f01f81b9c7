"""Who may run, who waits, who is refused."""

import heapq

from osmosis_grpc.engine.record import Record, Tenant
from osmosis_grpc.errors import ResourceExhausted

RETRY_AFTER = 1.0
"""What a refused caller is told to wait, in seconds."""


class Admission:
    """Slots and queues. A free slot goes to the tenant with the fewest running rollouts.

    Within a tenant, rollouts of higher priority leave the queue first, equal ones in order.
    """

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self.max_concurrent = max_concurrent
        self.max_queued = max_queued
        self.running = 0
        """Slots taken, also by agents that did not stop."""
        self._reserved = 0
        self._waiting: set[Record] = set()
        self._queues: dict[Tenant, list[tuple[int, int, Record]]] = {}

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def reserve(self, *, beyond: bool = False) -> None:
        """Hold a place for a rollout whose acceptance takes time; `beyond` the limits where it was accepted before.

        Raises ResourceExhausted.
        """
        if not beyond and self.running + self.queued + self._reserved >= self.max_concurrent + self.max_queued:
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
            record.tenant.running += 1
            return True
        self._waiting.add(record)
        self._queue(record)
        return False

    def withdraw(self, record: Record) -> None:
        """A waiting rollout waits no longer."""
        self._waiting.discard(record)
        queue = self._queues.get(record.tenant, [])
        if len(queue) > 2 * len(self._waiting) + 64:
            queue[:] = [row for row in queue if row[2] in self._waiting]
            heapq.heapify(queue)

    def leave(self, tenant: Tenant) -> Record | None:
        """A tenant gives back a slot. Returns the rollout that takes it over, if one waits."""
        tenant.running -= 1
        following = self._next()
        if following is None:
            self.running -= 1
        else:
            following.tenant.running += 1
        return following

    def move(self, record: Record, tenant: Tenant, *, runs: bool) -> None:
        """A rollout is another tenant's from now on."""
        old, record.tenant = record.tenant, tenant
        if runs:
            old.running -= 1
            tenant.running += 1
        elif record in self._waiting:
            self._queue(record)

    def _queue(self, record: Record) -> None:
        row = (-record.init.request.priority, record.sequence, record)
        heapq.heappush(self._queues.setdefault(record.tenant, []), row)

    def _next(self) -> Record | None:
        best: Tenant | None = None
        for tenant, queue in list(self._queues.items()):
            while queue and (queue[0][2] not in self._waiting or queue[0][2].tenant is not tenant):
                heapq.heappop(queue)
            if not queue:
                del self._queues[tenant]
            elif best is None or (tenant.running, queue[0]) < (best.running, self._queues[best][0]):
                best = tenant
        if best is None:
            return None
        record = heapq.heappop(self._queues[best])[2]
        self._waiting.discard(record)
        return record
