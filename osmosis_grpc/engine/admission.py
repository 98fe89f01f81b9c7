"""Who may run, who waits, who is refused."""

import heapq
from collections import Counter

from osmosis_grpc.engine.record import Record, Tenant
from osmosis_grpc.engine.shares import Shares
from osmosis_grpc.errors import ResourceExhausted

RETRY_AFTER = 1.0
"""What a refused caller is told to wait, in seconds."""

_Row = tuple[int, int, Record]


class Admission:
    """Slots and queues. Owners share both; Shares says how.

    A free slot goes to the owner with the fewest running rollouts, and there to the tenant with the fewest. Within a
    tenant, rollouts of higher priority leave the queue first, equal ones in order.
    """

    def __init__(self, max_concurrent: int, max_queued: int, per_owner: int | None = None) -> None:
        self.max_concurrent = max_concurrent
        self.max_queued = max_queued
        self._slots = Shares(max_concurrent, per_owner)
        self._places = Shares(max_concurrent + max_queued)
        """Of what runs, waits, or is on its way to acceptance."""
        self._waiting: set[Record] = set()
        self._waiting_of: Counter[str] = Counter()
        """How many of each owner's wait."""
        self._queues: dict[str, dict[Tenant, list[_Row]]] = {}

    @property
    def running(self) -> int:
        """Slots taken, also by agents that did not stop."""
        return self._slots.total

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def reserve(self, owner: str, *, beyond: bool = False) -> None:
        """Hold a place for a rollout whose acceptance takes time; `beyond` the limits where it was accepted before.

        Raises ResourceExhausted.
        """
        if not beyond and not self._places.room(owner):
            used = self._places.used(owner)
            yours = "" if used == self._places.total else f"; {used} of them are this owner's"
            raise ResourceExhausted(
                f"{self.running} rollouts run and {self.queued} wait; "
                f"the limits are {self.max_concurrent} and {self.max_queued}{yours}",
                retry_after=RETRY_AFTER,
            )
        self._places.add(owner, 1)

    def release(self, owner: str) -> None:
        """Give back a place that was held."""
        self._places.add(owner, -1)

    def enter(self, record: Record) -> bool:
        """Turn a held place into a slot (true) or a place in the queue (false)."""
        if self._slots.room(record.owner):
            self._run(record)
            return True
        self._waiting.add(record)
        self._waiting_of[record.owner] += 1
        self._queue(record)
        return False

    def withdraw(self, record: Record) -> None:
        """A waiting rollout waits no longer."""
        if record in self._waiting:
            self._take_out(record)
            self._places.add(record.owner, -1)
        queue = self._queues.get(record.owner, {}).get(record.tenant, [])
        if len(queue) > 2 * len(self._waiting) + 64:
            queue[:] = [row for row in queue if row[2] in self._waiting]
            heapq.heapify(queue)

    def leave(self, record: Record) -> list[Record]:
        """A rollout gives back its slot. Returns those that may run now: one, or more where an owner's share grew."""
        record.tenant.running -= 1
        self._slots.add(record.owner, -1)
        self._places.add(record.owner, -1)
        started: list[Record] = []
        while (following := self._next()) is not None:
            self._take_out(following)
            self._run(following)
            started.append(following)
        return started

    def move(self, record: Record, tenant: Tenant, *, runs: bool) -> None:
        """A rollout is another tenant's from now on, of the same owner."""
        old, record.tenant = record.tenant, tenant
        if runs:
            old.running -= 1
            tenant.running += 1
        elif record in self._waiting:
            self._queue(record)

    def _take_out(self, record: Record) -> None:
        """A rollout waits no longer, and its row in the queue counts no more."""
        self._waiting.discard(record)
        self._waiting_of[record.owner] -= 1
        if not self._waiting_of[record.owner]:
            del self._waiting_of[record.owner]
            del self._queues[record.owner]

    def _run(self, record: Record) -> None:
        self._slots.add(record.owner, 1)
        record.tenant.running += 1

    def _queue(self, record: Record) -> None:
        row = (-record.init.request.priority, record.sequence, record)
        heapq.heappush(self._queues.setdefault(record.owner, {}).setdefault(record.tenant, []), row)

    def _next(self) -> Record | None:
        """Take the rollout out of its queue that runs next; None where nobody who waits may have a slot."""
        owners = [owner for owner in self._waiting_of if self._slots.room(owner)]
        fewest = min(map(self._slots.used, owners), default=0)
        best: tuple[int, _Row] | None = None
        for owner in owners:
            if self._slots.used(owner) > fewest:
                continue
            for tenant, queue in list(self._queues[owner].items()):
                while queue and (queue[0][2] not in self._waiting or queue[0][2].tenant is not tenant):
                    heapq.heappop(queue)
                if not queue:
                    del self._queues[owner][tenant]
                elif best is None or (tenant.running, queue[0]) < best:
                    best = tenant.running, queue[0]
        if best is None:
            return None
        record = best[1][2]
        heapq.heappop(self._queues[record.owner][record.tenant])
        return record
