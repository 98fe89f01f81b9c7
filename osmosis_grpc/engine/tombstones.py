"""Tombstones: cancels that came before their Init. Each is kept for tombstone_ttl.

A confirmed cancel must take effect, so tombstones are never dropped to make room for new ones. If an owner has too
many, its next cancel is refused.
"""

from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.supervise import System

CANCELLED_EARLY = "cancelled before its Init came"
"""The cancel reason of the rollouts that a tombstone cancels. The reason in the request is not kept."""
_ANY_ATTEMPT = 2**32


class Tombstones:
    """Keeps the tombstones, in memory and in the journal.

    For each owner and rollout id, there is the highest cancelled attempt, and the time when the tombstone expires.
    """

    def __init__(self, config: EngineConfig, journal: Journal, system: System) -> None:
        self._config = config
        self._journal = journal
        self._system = system
        self._owners: dict[str, dict[str, tuple[int, float]]] = {}
        now = system.monotonic()
        for owner, rollout_id, attempt, seconds in journal.tombstones():
            self._owners.setdefault(owner, {})[rollout_id] = (attempt, now + seconds)

    def add(self, owner: str, rollout_id: str, attempt: int) -> None:
        """Keep a cancel whose Init may still come. Attempt 0 means every attempt. Raises ResourceExhausted."""
        now, ttl, most = self._system.monotonic(), self._config.tombstone_ttl, self._config.max_tombstones
        kept = self._owners.setdefault(owner, {})
        if rollout_id not in kept and len(kept) >= most:
            raise ResourceExhausted(
                f"{most} cancels wait for their Inits; each does so for at most {ttl:g} s", retry_after=5.0
            )
        before, until = kept.get(rollout_id, (0, 0.0))
        upto = max(attempt or _ANY_ATTEMPT, before if until > now else 0)
        kept[rollout_id] = (upto, now + ttl)
        self._journal.add_tombstone(owner, rollout_id, upto, ttl)

    def take(self, record: Record) -> bool:
        """Return whether a cancel waits for this rollout, and delete it."""
        kept = self._owners.get(record.owner)
        attempt, until = kept.get(record.rollout_id, (0, 0.0)) if kept else (0, 0.0)
        if not kept or attempt < record.attempt or until <= self._system.monotonic():
            return False
        del kept[record.rollout_id]
        self._journal.add_tombstone(record.owner, record.rollout_id, attempt, 0.0)
        return True

    def __len__(self) -> int:
        """Return how many cancels wait for their Inits."""
        return sum(map(len, self._owners.values()))

    def sweep(self, now: float) -> None:
        """Drop the cancels that have expired at the monotonic time `now`. The journal drops its own copies."""
        for owner, kept in list(self._owners.items()):
            for rollout_id in [name for name, (_, until) in kept.items() if until <= now]:
                del kept[rollout_id]
            if not kept:
                del self._owners[owner]
