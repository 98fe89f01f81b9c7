"""Tracks trainer addresses that could not be reached, and the deliveries that wait for them.

Each delivery is retried after its own pause. But when any call to the trainer succeeds, its waiting deliveries are
retried at once, a limited number at a time.
"""

import asyncio
from dataclasses import dataclass, field

from osmosis_grpc.engine.record import Record

AT_ONCE = 16
"""When a trainer is available again, at most this many deliveries are retried in parallel."""


@dataclass(slots=True)
class Destination:
    """One trainer address."""

    waiting: dict[Record, None] = field(default_factory=dict)
    """The deliveries that wait until the address is available, the oldest first."""
    retrying: set[Record] = field(default_factory=set)
    """The deliveries that are retried because the address is available again."""


class Destinations:
    """The addresses for which deliveries wait, by Peer.destination_key."""

    def __init__(self) -> None:
        self._destinations: dict[object, Destination] = {}

    @property
    def waiting(self) -> int:
        """How many deliveries wait for an address to be available."""
        return sum(len(destination.waiting) for destination in self._destinations.values())

    @property
    def retrying(self) -> int:
        """How many deliveries are retried because their address is available again."""
        return sum(len(destination.retrying) for destination in self._destinations.values())

    async def wait(self, record: Record, seconds: float, key: object) -> bool:
        """Wait for `seconds`, or less if the rollout is re-pointed or the address `key` becomes available.

        If `key` is None, no address ends the wait. Return whether the address is available. If so, the caller must
        retry the delivery, and then call tried().
        """
        destination = Destination() if key is None else self._destinations.setdefault(key, Destination())
        destination.waiting[record] = None
        try:
            async with asyncio.timeout(seconds):
                await record.repointed().wait()
        except TimeoutError:
            pass
        finally:
            destination.waiting.pop(record, None)
            self._forget_idle(key)
        return record in destination.retrying

    def reached(self, key: object) -> None:
        """Record a successful call to an address, and retry the deliveries that wait for it."""
        destination = self._destinations.get(key) if self._destinations else None
        if destination is None:
            return
        while destination.waiting and len(destination.retrying) < AT_ONCE:
            record = next(iter(destination.waiting))
            del destination.waiting[record]
            destination.retrying.add(record)
            record.wake()

    def tried(self, record: Record, key: object, *, reached: bool) -> None:
        """Record a try of a delivery. If it reached its address, retry the next deliveries."""
        destination = self._destinations.get(key)
        if destination is None:
            return
        destination.retrying.discard(record)
        if reached:
            self.reached(key)
        self._forget_idle(key)

    def _forget_idle(self, key: object) -> None:
        destination = self._destinations.get(key)
        if destination is not None and not destination.waiting and not destination.retrying:
            del self._destinations[key]
