"""The journal's own clock, by which it counts how long a rollout has run and how long it is kept."""

from collections.abc import Callable


class JournalClock:
    """Seconds for which processes have had the journal open.

    It follows the monotonic clock while a process has the journal, and stands still while none has it. So no jump of
    the wall clock and no time without a server makes a rollout older. A process records its time with what it writes;
    the next process goes on from there.
    """

    def __init__(self, recorded: float, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead = recorded - monotonic()

    def now(self) -> float:
        """Returns the seconds so far."""
        return self._monotonic() + self._ahead
