"""The records: found by id and attempt, kept for their time and within the memory budget."""

from collections.abc import Iterator

from osmosis_grpc.agent.ports import Store
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.record import Record
from osmosis_grpc.errors import AlreadyExists
from osmosis_grpc.types import RolloutRequest

_ANY_ATTEMPT = 2**32


class RecordTable:
    """All records, their aliases, and the tombstones of cancels that came too early."""

    def __init__(self, config: EngineConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._records: dict[str, dict[int, Record]] = {}
        self._by_sequence: dict[int, Record] = {}
        self._last_sequence = 0
        self._live: dict[Record, None] = {}
        self._ended: dict[Record, int] = {}
        self._ended_size = 0
        self._aliases: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._tombstones: dict[tuple[str, str], tuple[int, float]] = {}

    def find(self, rollout_id: str, attempt: int) -> Record | None:
        """One attempt."""
        return self._records.get(rollout_id, {}).get(attempt)

    def highest(self, rollout_id: str) -> Record | None:
        """The newest attempt, be it accepted or still on its way there."""
        attempts = self._records.get(rollout_id)
        return attempts[max(attempts)] if attempts else None

    def accepted(self, rollout_id: str) -> Record | None:
        """The newest accepted attempt."""
        attempts = [r for r in self._records.get(rollout_id, {}).values() if r.accepted.done()]
        return max(attempts, key=lambda record: record.attempt, default=None)

    def pending(self, rollout_id: str) -> list[Record]:
        """The attempts that are on their way to acceptance."""
        return [r for r in self._records.get(rollout_id, {}).values() if not r.accepted.done()]

    def attempts_below(self, record: Record) -> list[Record]:
        """The accepted attempts that this one supersedes."""
        attempts = self._records[record.rollout_id].items()
        return [r for a, r in attempts if a < record.attempt and r.accepted.done()]

    def after(self, sequence: int) -> Iterator[Record]:
        """Accepted records in order of acceptance."""
        return (record for number, record in list(self._by_sequence.items()) if number > sequence)

    def live(self) -> list[Record]:
        """Records that have not ended."""
        return list(self._live)

    @property
    def ended_count(self) -> int:
        """How many ended records are kept."""
        return len(self._ended)

    def add(self, record: Record) -> None:
        """A new record, on its way to acceptance."""
        self._records.setdefault(record.rollout_id, {})[record.attempt] = record
        self._live[record] = None
        key = record.init.request.idempotency_key
        if key:
            self._aliases[record.owner, key] = record.rollout_id
            self._keys[record.owner, record.rollout_id] = key

    def accept(self, record: Record) -> None:
        """It is accepted: from here on it has its place in the order."""
        self._last_sequence += 1
        record.sequence = self._last_sequence
        self._by_sequence[record.sequence] = record

    def remove(self, record: Record) -> None:
        """Forget a record."""
        attempts = self._records.get(record.rollout_id, {})
        attempts.pop(record.attempt, None)
        if not attempts:
            self._records.pop(record.rollout_id, None)
        if not any(other.init.request.idempotency_key for other in attempts.values()):
            key = self._keys.pop((record.owner, record.rollout_id), None)
            if key:
                self._aliases.pop((record.owner, key), None)
        self._by_sequence.pop(record.sequence, None)
        self._live.pop(record, None)
        self._ended_size -= self._ended.pop(record, 0)
        self._store.forget(record.rollout_id, record.attempt)

    def check_alias(self, request: RolloutRequest, owner: str) -> None:
        """Refuse a key that names another rollout, and a rollout that has another key."""
        key = request.idempotency_key
        named = self._aliases.get((owner, key)) if key else None
        if named is not None and named != request.rollout_id:
            raise AlreadyExists(f"the idempotency_key names rollout {named}", rollout_id=named)
        has = self._keys.get((owner, request.rollout_id))
        if key and has is not None and has != key:
            raise AlreadyExists(
                f"rollout {request.rollout_id} has another idempotency_key", rollout_id=request.rollout_id
            )

    def bury(self, owner: str, rollout_id: str, attempt: int, now: float) -> None:
        """Remember a cancel whose Init may still come; without an attempt it means any."""
        before = self._tombstones.get((owner, rollout_id), (0, 0.0))
        upto = max(attempt or _ANY_ATTEMPT, before[0] if before[1] > now else 0)
        self._tombstones[owner, rollout_id] = (upto, now + self._config.tombstone_ttl)

    def dig_up(self, record: Record, now: float) -> bool:
        """Whether a cancel came before this Init; it is used up."""
        attempt, until = self._tombstones.get((record.owner, record.rollout_id), (0, 0.0))
        if attempt < record.attempt or until <= now:
            return False
        del self._tombstones[record.owner, record.rollout_id]
        return True

    def ended(self, record: Record) -> None:
        """A record ended: it counts against the budget from now on."""
        self._live.pop(record, None)
        size = self._store.size(record.rollout_id, record.attempt)
        self._ended[record] = size
        self._ended_size += size
        self.make_room()

    @property
    def full(self) -> bool:
        """Whether even without everything that may go the budget is spent."""
        return self._ended_size > self._config.memory_budget

    def make_room(self) -> None:
        """Drop the oldest settled records while the budget is overdrawn; undelivered ones never."""
        while self.full:
            settled = next((record for record in self._ended if record.settled), None)
            if settled is None:
                return
            self.remove(settled)

    def overdue(self, now: float) -> list[Record]:
        """Ended records that are undelivered past their time."""
        return [r for r in self._ended if r.undelivered and (r.ended or 0.0) + self._config.record_ttl <= now]

    def sweep(self, now: float) -> None:
        """Drop what is past its time."""
        for record in list(self._ended):
            assert record.ended is not None
            if record.settled and record.ended + self._config.record_ttl <= now:
                self.remove(record)
        for key, (_, until) in list(self._tombstones.items()):
            if until <= now:
                del self._tombstones[key]
