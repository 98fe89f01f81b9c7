"""Trainers that could not be reached, and the completions that wait until they can be.

Each waits out a pause of its own. The first call that gets through shows that the trainer is
back: then those that wait go at once, a few at a time.
"""

import asyncio

from osmosis_grpc.engine.record import Record

AT_ONCE = 16
"""Completions of one trainer that are on their way because it is back."""


class Absences:
    """By trainer (Peer.trainer): who waits, oldest first, and who has been woken."""

    def __init__(self) -> None:
        self._waiting: dict[object, dict[Record, None]] = {}
        self._woken: dict[object, set[Record]] = {}

    async def wait(self, record: Record, seconds: float, trainer: object) -> bool:
        """Wait for a re-pointing, for this trainer (None: for none), or for so long; true when the trainer is back.

        Then the next try is followed by tried().
        """
        turn = record.next_turn()
        if trainer is not None:
            self._waiting.setdefault(trainer, {})[record] = None
        try:
            async with asyncio.timeout(seconds):
                await turn.wait()
        except TimeoutError:
            pass
        finally:
            self._leave(record, trainer)
        return record in self._woken.get(trainer, ())

    def reached(self, trainer: object) -> None:
        """A call got through."""
        waiting = self._waiting and self._waiting.get(trainer)
        if not waiting:
            return
        woken = self._woken.setdefault(trainer, set())
        while waiting and len(woken) < AT_ONCE:
            record = next(iter(waiting))
            self._leave(record, trainer)
            woken.add(record)
            record.wake()

    def tried(self, record: Record, trainer: object, *, reached: bool) -> None:
        """A try is over; where it got through, the next ones go."""
        woken = self._woken.get(trainer)
        if woken is not None:
            woken.discard(record)
            if not woken:
                del self._woken[trainer]
        if reached:
            self.reached(trainer)

    def _leave(self, record: Record, trainer: object) -> None:
        waiting = self._waiting.get(trainer)
        if waiting is not None:
            waiting.pop(record, None)
            if not waiting:
                del self._waiting[trainer]
