"""The journal's clock: it measures how long a rollout has run, and how long it is kept."""

from collections.abc import Callable


class JournalClock:
    """Counts the seconds in which a process has the journal open.

    It follows the monotonic clock, and stops while no process has the journal. So neither a jump of the wall clock nor
    time without a server makes a rollout older. The process writes its time to the journal; the next process continues
    from there.
    """

    def __init__(self, recorded: float, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead = recorded - monotonic()

    def now(self) -> float:
        """Return the seconds so far."""
        return self._monotonic() + self._ahead
