"""Decides which rollouts run, which wait, and which are refused."""

import heapq
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from osmosis_grpc.engine.fair_shares import Shares
from osmosis_grpc.engine.record import Record, Tenant
from osmosis_grpc.protocol.errors import ResourceExhausted

RETRY_AFTER = 1.0
"""The retry_after, in seconds, if Admission refuses an Init."""

_Row = tuple[int, int, Record]
_Line = tuple[Tenant, str]
"""A tenant, and the name of an agent with a limit of its own, or ""."""


class Admission:
    """The slots for running rollouts, and the queues of waiting rollouts. Owners share both (see Shares).

    A free slot goes to the owner with the fewest running rollouts. Among the tenants of this owner, the slot goes to
    the tenant with the fewest running rollouts. Within a tenant, rollouts with a higher priority leave the queue first.
    Rollouts with the same priority leave the queue in order of acceptance.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_queued: int,
        per_owner: int | None = None,
        per_agent: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.max_concurrent = max_concurrent
        self.max_queued = max_queued
        self._slots = Shares(max_concurrent, per_owner)
        self._places = Shares(max_concurrent + max_queued)
        """Each rollout that runs, waits, or is being accepted uses one place."""
        self._waiting: set[Record] = set()
        self._waiting_of: Counter[str] = Counter()
        """The number of waiting rollouts by owner."""
        self._queues: dict[str, dict[_Line, list[_Row]]] = {}
        """The queues of each owner. Rollouts of an agent with a limit of its own have a separate queue."""
        self._per_agent = per_agent
        """The limits of agents that have one: the largest number of running rollouts, by the agent's name."""
        self._running_of: Counter[str] = Counter()
        """The number of running rollouts of each agent."""

    @property
    def running(self) -> int:
        """The number of used slots, including the slots of abandoned agents."""
        return self._slots.total

    @property
    def queued(self) -> int:
        """The number of waiting rollouts."""
        return len(self._waiting)

    def reserve(self, record: Record, *, beyond: bool = False) -> None:
        """Reserve a place for a rollout until enter() or release().

        Raises ResourceExhausted if no place is free. With `beyond`, the limits do not apply: use it for a rollout that
        an earlier process has accepted.
        """
        if not beyond and not self._places.available(record.owner):
            used = self._places.used(record.owner)
            yours = "" if used == self._places.total else f"; {used} of them are this owner's"
            raise ResourceExhausted(
                f"{self.running} rollouts run and {self.queued} wait; "
                f"the limits are {self.max_concurrent} and {self.max_queued}{yours}",
                retry_after=RETRY_AFTER,
                reason="AT_CAPACITY",
            )
        self._places.add(record.owner, 1)
        record.reserved = True

    def release(self, record: Record) -> None:
        """Give back the reserved place of a rollout, if there is one."""
        self._places.add(record.owner, -record.reserved)
        record.reserved = False

    def enter(self, record: Record) -> bool:
        """Turn a reserved place into a slot or a place in the queue. Return True for a slot."""
        record.reserved = False
        if self._slots.available(record.owner) and self._agent_free(self._limited(record)):
            self._run(record)
            return True
        self._waiting.add(record)
        self._waiting_of[record.owner] += 1
        self._queue(record)
        return False

    def withdraw(self, record: Record) -> None:
        """Remove a rollout from its queue, if it waits."""
        if record in self._waiting:
            self._take_out(record)
            self._places.add(record.owner, -1)
        queue = self._queues.get(record.owner, {}).get((record.tenant, self._limited(record)), [])
        if len(queue) > 2 * len(self._waiting) + 64:
            queue[:] = [row for row in queue if row[2] in self._waiting]
            heapq.heapify(queue)

    def leave(self, record: Record) -> list[Record]:
        """Give back the slot of a rollout. Return the rollouts that get a slot now.

        There can be several, because the shares of other owners can grow.
        """
        record.tenant.running -= 1
        self._running_of[record.agent_loop] -= 1
        self._slots.add(record.owner, -1)
        self._places.add(record.owner, -1)
        started: list[Record] = []
        while (following := self._next()) is not None:
            self._take_out(following)
            self._run(following)
            started.append(following)
        return started

    def move(self, record: Record, tenant: Tenant, *, runs: bool) -> None:
        """Move a rollout to another tenant of the same owner."""
        old, record.tenant = record.tenant, tenant
        if runs:
            old.running -= 1
            tenant.running += 1
        elif record in self._waiting:
            self._queue(record)

    def _take_out(self, record: Record) -> None:
        """Count a rollout as no longer waiting. Its row may stay in the queue; _heads() drops it later."""
        self._waiting.discard(record)
        self._waiting_of[record.owner] -= 1
        if not self._waiting_of[record.owner]:
            del self._waiting_of[record.owner]
            del self._queues[record.owner]

    def _run(self, record: Record) -> None:
        self._slots.add(record.owner, 1)
        self._running_of[record.agent_loop] += 1
        record.tenant.running += 1

    def _queue(self, record: Record) -> None:
        row = (-record.init.request.priority, record.sequence, record)
        line = record.tenant, self._limited(record)
        heapq.heappush(self._queues.setdefault(record.owner, {}).setdefault(line, []), row)

    def _limited(self, record: Record) -> str:
        """Return the agent of a rollout if the agent has a limit of its own, otherwise ""."""
        return record.agent_loop if record.agent_loop in self._per_agent else ""

    def _agent_free(self, agent: str) -> bool:
        return not agent or self._running_of[agent] < self._per_agent[agent]

    def _next(self) -> Record | None:
        """Take the next rollout from its queue. Return None if no waiting rollout may have a slot."""
        owners = [owner for owner in self._waiting_of if self._slots.available(owner)]
        for used in sorted(set(map(self._slots.used, owners))):
            heads = [head for owner in owners if self._slots.used(owner) == used for head in self._heads(owner)]
            if heads:
                _, row, line = min(heads)
                heapq.heappop(self._queues[row[2].owner][line])
                return row[2]
        return None

    def _heads(self, owner: str) -> list[tuple[int, _Row, _Line]]:
        """Return each queue of an owner whose first row may run: running rollouts of the tenant, row, key of the queue.

        The smallest of these tuples runs next.
        """
        heads = []
        for line, queue in list(self._queues[owner].items()):
            tenant, agent = line
            while queue and (queue[0][2] not in self._waiting or queue[0][2].tenant is not tenant):
                heapq.heappop(queue)
            if not queue:
                del self._queues[owner][line]
            elif self._agent_free(agent):
                heads.append((tenant.running, queue[0], line))
        return heads
