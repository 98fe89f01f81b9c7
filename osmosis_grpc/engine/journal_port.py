"""The Journal port: where the engine stores rollouts and their events.

`osmosis_grpc.storage` has a journal in memory and one in SQLite. A further backend is one file: a subclass of Journal;
`tests/storage/test_journal_port.py` runs the contract over every backend.
"""

# ruff: noqa: B027 - a method without a body is a default: a journal in memory has nothing to record

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from osmosis_grpc.types import JournaledRollout, RolloutState, TrajectoryEvent

T = TypeVar("T")
Trajectories = Callable[[str, int], Iterable[TrajectoryEvent]]
"""Returns all committed events of a rollout, by its id and attempt."""


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts a list has. The default matches all."""

    states: Sequence[RolloutState] = ()
    """Leaves out settled rollouts in other states; () for all states."""
    group_id: str = ""
    unsettled: bool = False
    """Leaves out all settled rollouts."""


EVERY = RolloutFilter()


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a journal, for its metrics."""

    bytes: int
    """Bytes of the file and of its write-ahead log."""
    commits: int
    commit_seconds: float
    """The time of all commits."""


class Journal(ABC):
    """Stores rollouts and their events. Positions order the events of all rollouts and never repeat.

    Readers see only committed events. Methods that read raise Unavailable when the disk cannot be read; forget and
    sweep leave unreadable rollouts to the next sweep. A method that is not abstract has a default for a journal that
    does not outlive its process: it records nothing and restores nothing.
    """

    durable = False
    """Whether the journal outlives the process. A durable journal counts bytes, and its `find` returns settled
    rollouts; with any other journal, the engine keeps ended rollouts in memory."""
    crashed = False
    """Whether the previous process ended without closing the journal."""

    def __init__(self, journal_id: str) -> None:
        self.journal_id = journal_id
        """Names this journal. A journal that has lost its content has a new id."""
        self.problem = ""
        """Why nothing can be written now; empty while writing works."""
        self.on_commit: Callable[[Sequence[Any], bool], None] = lambda tokens, ok: None
        """Called after each commit with the tokens of its appends and True; with False if they cannot be committed."""
        self.on_problem: Callable[[str], None] = lambda problem: None
        """Called with the new `problem` each time it changes."""
        self.last_position = 0
        """The position of the newest committed event; 0 before the first."""
        self.forgotten_position = 0
        """The highest position that was ever dropped; 0 before that."""
        self.last_sequence = 0
        """The highest sequence number, in the order of acceptance, that was ever given to a rollout."""

    @property
    @abstractmethod
    def live_size(self) -> int:
        """About how many bytes the events of unfinished rollouts take in memory."""

    # Writing.

    @abstractmethod
    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """Append an event of about `size` bytes. Returns True if it is committed now; else `on_commit` gets `token`.

        The first event of a rollout comes with its entry.
        """

    @abstractmethod
    def barrier(self, then: Callable[[bool], None]) -> None:
        """Call `then` after the commit of all appends so far; with False when one of them cannot be committed."""

    @abstractmethod
    def forget(self, rollout_id: str, attempt: int) -> None:
        """Delete a rollout."""

    def repoint(self, entry: JournaledRollout) -> None:
        """Record the new destination of a rollout's calls."""

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        """Record how often the server's process died while a rollout's agent ran, since its last new reply."""

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        """Keep for so many seconds a cancel whose Init may still come; 0 deletes it."""

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        """Store the parts of an agent's version. The newest 64 versions are kept."""

    def sweep(self) -> None:
        """Delete settled rollouts that are past their time, and the oldest ones while the journal is over its budget.

        Time passes only while a process has the journal open: no jump of the wall clock makes a rollout older.
        """

    def close(self) -> None:
        """Commit everything that waits, and release the files."""

    # Reading.

    @abstractmethod
    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """Return a rollout's events with numbers above `after`: at most `limit`, fewer if they are large."""

    @abstractmethod
    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        """Return events of an owner with positions above `after`, with these, and where the next call starts.

        One call looks at a bounded number of positions: it may return no event though more follow.
        """

    @abstractmethod
    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """Return read(trajectories). A journal on disk calls it on another thread."""

    @abstractmethod
    def size(self, rollout_id: str, attempt: int) -> int:
        """Return about how many bytes an ended rollout takes in memory."""

    @abstractmethod
    async def entries(
        self, owner: str, after: int, limit: int, where: RolloutFilter = EVERY
    ) -> Sequence[JournaledRollout]:
        """Return an owner's rollouts in order of acceptance, after a sequence number, without completions.

        The filter is a hint: the result has every rollout that matches, and may have others. Never blocks the event
        loop for long.
        """

    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        """Return the committed attempts of a rollout, with their completions; none if the journal is not durable."""
        return ()

    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        """Return the id of the rollout with this key; an empty text if there is none."""
        return ""

    def unsettled(self) -> Sequence[JournaledRollout]:
        """Return the unsettled rollouts that the previous process left, in order of acceptance."""
        return ()

    def elapsed(self, entry: JournaledRollout) -> float:
        """Return the seconds since a rollout's acceptance, without the time in which no process had the journal."""
        return 0.0

    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        """Return the cancels of add_tombstone: owner, rollout id, attempt, and the seconds that are left."""
        return ()

    def version(self, digest: str) -> Mapping[str, str]:
        """Return the parts of an agent's version; empty if it is not known."""
        return {}

    def has_room(self, owner: str) -> bool:
        """Return whether an owner may add a rollout: the budget is not full, or the owner uses less than a share."""
        return True

    def figures(self) -> Figures | None:
        """Return the journal's size and the cost of its commits; None if it has no file."""
        return None
