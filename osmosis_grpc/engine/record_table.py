"""The table of the records in memory, by id and attempt. It enforces record_ttl and the memory budget.

If the journal is durable, settled rollouts are not kept in memory. They are read from the journal.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Collection
from typing import Any

from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.fair_shares import Shares
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Peer, Record, Tenant
from osmosis_grpc.protocol.errors import AlreadyExists, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import Group, JournaledRollout, RolloutFilter, RolloutRequest
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.supervise import System

MESSAGE_BYTES = 256
"""The approximate memory of a message without its texts, in bytes."""
SLICE = 200
"""A sweep lets other tasks run each time it has dropped this many records."""
PAGE = 256
"""The number of entries that are read from the journal at once."""


async def _refuse(call: Any, /) -> Any:
    raise Unavailable("the rollout is over")


_NO_PEER = Peer(_refuse, _refuse)
"""The peer of settled rollouts. A settled rollout makes no calls."""


class RecordTable:
    """All records, and their aliases."""

    def __init__(self, config: EngineConfig, journal: Journal, system: System) -> None:
        self._config = config
        self._journal = journal
        self._system = system
        self._records: dict[str, dict[int, Record]] = {}
        self._by_sequence: dict[int, Record] = {}
        self._last_sequence = journal.last_sequence
        self._live: dict[Record, int] = {}
        """The unfinished records. Each value is the bytes of the record without its events."""
        self._ended: dict[Record, int] = {}
        """The ended records. Each value is the bytes of the record."""
        self._sizes = Shares(config.memory_budget)
        """The bytes of each owner's records."""
        self._settled: dict[str, dict[Record, None]] = {}
        """The settled records by owner, the oldest first."""
        self._aliases: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}

    def find(self, rollout_id: str, attempt: int) -> Record | None:
        """Return one attempt, or None if it is unknown."""
        record = self._records.get(rollout_id, {}).get(attempt)
        return record or next((r for r in self._cold(rollout_id) if r.attempt == attempt), None)

    def highest(self, rollout_id: str) -> Record | None:
        """Return the newest attempt, accepted or not."""
        attempts = [*self._records.get(rollout_id, {}).values(), *self._cold(rollout_id)]
        return max(attempts, key=lambda record: record.attempt, default=None)

    def newest(self, rollout_id: str) -> Record:
        """Return the newest attempt of a rollout. The rollout must have a live attempt, so that all are in memory."""
        attempts = self._records[rollout_id]
        return attempts[max(attempts)]

    def accepted(self, rollout_id: str) -> Record | None:
        """Return the newest accepted attempt, or None if there is none."""
        attempts = [r for r in self._records.get(rollout_id, {}).values() if r.accepted.done()]
        return max([*attempts, *self._cold(rollout_id)], key=lambda record: record.attempt, default=None)

    def _cold(self, rollout_id: str) -> list[Record]:
        """Return the attempts that are only in the journal.

        Every unsettled rollout is in memory. An unsettled one that is only in the journal was refused, because its
        commit was reported as failed, so it is left out.
        """
        known = self._records.get(rollout_id, {})
        found = (entry for entry in self._journal.find(rollout_id) if entry.settled)
        return [_record_of(entry) for entry in found if entry.init.request.attempt not in known]

    def pending(self, rollout_id: str) -> list[Record]:
        """Return the attempts that are being accepted."""
        return [r for r in self._records.get(rollout_id, {}).values() if not r.accepted.done()]

    def attempts_below(self, record: Record) -> list[Record]:
        """Return the accepted attempts that this attempt supersedes."""
        attempts = self._records[record.rollout_id].items()
        return [r for a, r in attempts if a < record.attempt and r.accepted.done()]

    async def after(
        self, sequence: int, owner: str, limit: int, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> AsyncIterator[Record]:
        """Yield the owner's accepted records with higher sequence numbers, in order of acceptance.

        With `newest_first`, yield those with lower sequence numbers in the reverse order; then 0 means no bound.
        `limit` is the number of records that the caller needs. Some yielded records may not match the filter.
        """
        if where.only_unsettled:  # every unsettled rollout is in memory
            found = sorted(self._by_sequence, reverse=newest_first)
            for count, number in enumerate(found, 1):
                record = self._by_sequence.get(number)
                beyond = not sequence or (number < sequence if newest_first else number > sequence)
                if beyond and record is not None and record.owner == owner and not record.delivery.settled:
                    yield record
                if count % SLICE == 0:
                    await asyncio.sleep(0)
            return
        size = min(PAGE, limit)
        while page := await self._journal.entries(owner, sequence, size, where, newest_first=newest_first):
            for entry in page:
                sequence = entry.sequence
                record = self._by_sequence.get(sequence)
                if record is None and not entry.settled:  # either settled after it was read, or refused
                    cold = self._cold(entry.init.request.rollout_id)
                    record = next((found for found in cold if found.sequence == sequence), None)
                if record is not None or entry.settled:
                    yield record or _record_of(entry)

    async def ended_members(self, group: Group, record: Record) -> Collection[int]:
        """Return the indices of the members of a group that ended before a restart of the server.

        `record` is a member that runs again.
        """
        where, members = RolloutFilter(group_id=group.id, agent_loop=record.agent_loop), []
        async for other in self.after(0, record.owner, group.size, where):
            place, end_time = other.init.request.group, other.delivery.end_time
            if place is not None and (place.id, place.size) == (group.id, group.size):
                members.append((math.inf if end_time is None else end_time, other.accept_time, place.index))
        ended, since = set(), record.accept_time
        for end_time, accept_time, index in sorted(members, reverse=True):
            if end_time < since:  # an earlier run of the trainer used the id of the group
                break
            since = min(since, accept_time)
            if end_time < math.inf:
                ended.add(index)
        return ended

    def in_memory(self) -> list[Record]:
        """Return the records in memory."""
        return [record for attempts in self._records.values() for record in attempts.values()]

    def live(self) -> list[Record]:
        """Return the records that have not ended."""
        return list(self._live)

    def add(self, record: Record) -> None:
        """Add a record that is being accepted, or that an earlier process accepted."""
        if record.sequence:
            self._by_sequence[record.sequence] = record
        self._records.setdefault(record.rollout_id, {})[record.attempt] = record
        self._live[record] = 0
        self.grow(record, record.init.size + MESSAGE_BYTES * len(record.init.request.messages))
        key = record.init.request.idempotency_key
        if key:
            self._aliases[record.owner, key] = record.rollout_id
            self._keys[record.owner, record.rollout_id] = key

    def accept(self, record: Record) -> None:
        """Give an accepted record the next sequence number."""
        self._last_sequence += 1
        record.sequence = self._last_sequence
        self._by_sequence[record.sequence] = record

    def remove(self, record: Record) -> None:
        """Drop a record from memory and from the journal."""
        self._evict(record)
        self._journal.forget(record.rollout_id, record.attempt)

    def settled(self, record: Record) -> None:
        """Record that an attempt is settled.

        When all attempts of the rollout are settled and in a durable journal, they are removed from memory.
        """
        if record.delivery.settled and record in self._ended:
            self._settled.setdefault(record.owner, {})[record] = None
        if record.delivery.settled and not record.trail.journaled:
            self._journal.settle_unrecorded(record.rollout_id, record.attempt)
        if self._journal.durable and record.trail.journaled and record.delivery.settled:
            attempts = self._records.get(record.rollout_id, {}).values()
            if all(other.delivery.settled and other.trail.journaled for other in attempts):
                for other in list(attempts):
                    self._evict(other)
        self.drop_over_budget()

    def _evict(self, record: Record) -> None:
        attempts = self._records.get(record.rollout_id, {})
        attempts.pop(record.attempt, None)
        if not attempts:
            self._records.pop(record.rollout_id, None)
        if not any(other.init.request.idempotency_key for other in attempts.values()):
            key = self._keys.pop((record.owner, record.rollout_id), None)
            if key:
                self._aliases.pop((record.owner, key), None)
        self._by_sequence.pop(record.sequence, None)
        live = self._live.pop(record, 0)
        self._sizes.add(record.owner, -live - self._ended.pop(record, 0))
        settled = self._settled.get(record.owner, {})
        settled.pop(record, None)
        if not settled:
            self._settled.pop(record.owner, None)

    def check_alias(self, request: RolloutRequest, owner: str) -> None:
        """Raise AlreadyExists if the idempotency_key belongs to another rollout, or the rollout has another key."""
        key = request.idempotency_key
        named = self._aliases.get((owner, key)) if key else None
        if key and named is None:
            named = self._journal.find_by_key(owner, key) or None
        if named is not None and named != request.rollout_id:
            raise AlreadyExists(f"the idempotency_key names rollout {named}", rollout_id=named)
        has = self._keys.get((owner, request.rollout_id))
        if key and has is None:
            keys = (e.init.request.idempotency_key for e in self._journal.find(request.rollout_id) if e.owner == owner)
            has = next(filter(None, keys), None)
        if key and has is not None and has != key:
            raise AlreadyExists(
                f"rollout {request.rollout_id} has another idempotency_key", rollout_id=request.rollout_id
            )

    def grow(self, record: Record, size: int) -> None:
        """Add bytes to the size of a live record."""
        if record in self._live:
            self._live[record] += size
            self._sizes.add(record.owner, size)

    def ended(self, record: Record) -> None:
        """Record the end of an attempt, and count all its bytes."""
        live = self._live.pop(record, 0)
        size = self._journal.size(record.rollout_id, record.attempt)
        self._sizes.add(record.owner, size - self._ended.get(record, 0) - live)
        self._ended[record] = size
        self.settled(record)

    def resized(self, record: Record) -> None:
        """Count the bytes of an ended record again, because it has a new event."""
        counted = self._ended.get(record)
        if counted is not None:
            size = self._ended[record] = self._journal.size(record.rollout_id, record.attempt)
            self._sizes.add(record.owner, size - counted)
            self.drop_over_budget()

    def check_budget(self, owner: str) -> None:
        """Raise ResourceExhausted if live rollouts and undelivered outcomes fill the memory or disk budget.

        An owner with less than an even share is not refused (see engine/fair_shares.py).
        """
        self.drop_over_budget()
        budget = self._config.memory_budget
        if self._memory > budget and self._sizes.has_even_share(owner):
            live = sum(self._live.values()) + self._journal.live_size
            raise ResourceExhausted(
                f"the memory_budget of {budget} bytes is full: live rollouts take about {live} bytes, "
                f"undelivered outcomes {self._memory - live}",
                retry_after=5.0,
            )
        if not self._journal.has_room(owner):
            raise ResourceExhausted(
                "the disk_budget is full: live rollouts and undelivered outcomes take it all", retry_after=5.0
            )

    @property
    def _memory(self) -> int:
        return self._sizes.total + self._journal.live_size

    def drop_over_budget(self) -> None:
        """Drop settled records while the memory budget is exceeded.

        The owner that uses most loses its oldest records first. An owner below an even share loses none.
        """
        while self._settled and self._memory > self._config.memory_budget:
            owner = max(self._settled, key=self._sizes.used)
            if not self._sizes.has_even_share(owner):
                return
            self.remove(next(iter(self._settled[owner])))

    def overdue(self, now: float) -> list[Record]:
        """Return the ended records that are still undelivered after record_ttl."""
        return [
            r
            for r in self._ended
            if r.delivery.undelivered and (r.delivery.ended or 0.0) + self._config.record_ttl <= now
        ]

    async def sweep(self, now: float) -> None:
        """Drop the settled records that are older than record_ttl. Let other tasks run after every SLICE records."""
        before = now - self._config.record_ttl
        settled = [record for records in self._settled.values() for record in records]
        old = [record for record in settled if record.delivery.ended is not None and record.delivery.ended <= before]
        for start in range(0, len(old), SLICE):
            for record in old[start : start + SLICE]:
                if record in self._ended:
                    self.remove(record)
            await asyncio.sleep(0)
        self._journal.sweep()


def _record_of(entry: JournaledRollout) -> Record:
    """Return a record for a rollout that is only in the journal."""
    return Record.of(entry, _NO_PEER, Tenant(), 0.0, 0.0)
