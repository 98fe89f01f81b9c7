"""The pauses between retries."""

from osmosis_grpc.supervise.system import System


class Backoff:
    """Pauses in seconds. The first pause is `first`. Each later pause is twice as long, up to `longest`.

    Each pause is shortened at random by up to a half, so that many clients do not retry at the same moment. `system`
    makes the random numbers.
    """

    __slots__ = ("_first", "_longest", "_pause", "_uniform")

    def __init__(self, first: float, longest: float, *, system: System) -> None:
        self._first = self._pause = first
        self._longest = longest
        self._uniform = system.uniform

    @property
    def limit(self) -> float:
        """The upper limit of the next pause."""
        return self._pause

    def next(self) -> float:
        """Return the next pause, and make the pause after it longer."""
        pause, self._pause = self._pause, min(self._longest, self._pause * 2)
        return pause * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Return to the first pause."""
        self._pause = self._first
