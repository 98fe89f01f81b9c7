"""The Journal port: where the engine stores rollouts and their events.

`osmosis_grpc.storage` has a journal in memory and a journal in SQLite. To add a backend, write a file with a subclass
of Journal. `tests/storage/test_journal_port.py` tests every backend against the contract.
"""

# ruff: noqa: B027 - methods without a body are defaults for a journal in memory, which has nothing to record

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.protocol.types import JournaledRollout, RolloutFilter, TrajectoryEvent
from osmosis_grpc.protocol.types.rollout_info import EVERY

T = TypeVar("T")
Trajectories = Callable[[str, int], Iterable[TrajectoryEvent]]
"""Takes the id and the attempt of a rollout, and returns all its committed events."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a journal, for its metrics."""

    bytes: int
    """The size of the file and of its write-ahead log."""
    budget: int
    """The largest size of the file, in bytes."""
    commits: int
    commit_seconds: float
    """The time that all commits together took."""


class Journal(ABC):
    """Stores rollouts and their events.

    Each event has a unique position, which orders the events of all rollouts. Readers see only committed events.
    Methods that read raise Unavailable if the disk cannot be read. If forget() or sweep() cannot read a rollout, the
    rollout stays until the next sweep. Methods that are not abstract have defaults that record and restore nothing, for
    a journal that ends with its process.
    """

    durable = False
    """Whether the journal outlives the process. A durable journal counts the bytes of its events itself, and its
    `find` returns settled rollouts. With any other journal, the engine keeps ended rollouts in memory."""
    crashed = False
    """Whether the previous process ended without closing the journal."""

    def __init__(self, journal_id: str) -> None:
        self.journal_id = journal_id
        """The id of this journal. A journal that has lost its content gets a new id."""
        self.problem = ""
        """Why nothing can be written now; empty while writing works."""
        self.on_commit: Callable[[Sequence[Any], bool], None] = lambda tokens, ok: None
        """Called with the tokens of appended events, and True after their commit or False if the commit failed."""
        self.on_problem: Callable[[str], None] = lambda problem: None
        """Called with the new `problem` each time it changes."""
        self.last_position = 0
        """The position of the newest committed event; 0 before the first."""
        self.forgotten_position = 0
        """The highest position whose event was dropped; 0 if none was."""
        self.last_sequence = 0
        """The highest sequence number of any rollout. Sequence numbers follow the order of acceptance."""

    @property
    @abstractmethod
    def live_size(self) -> int:
        """The approximate number of bytes that the events of unfinished rollouts take in memory."""

    # Writing.

    @abstractmethod
    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """Append an event of about `size` bytes.

        Return True if the event is committed at once. Otherwise `on_commit` gets `token` later. The first event of a
        rollout comes with the entry of the rollout. A settled rollout gets only events of the kind Annotated.
        """

    @abstractmethod
    def barrier(self, then: Callable[[bool], None]) -> None:
        """Call `then` with True after the commit of all appends so far, or with False if one of them failed."""

    @abstractmethod
    def forget(self, rollout_id: str, attempt: int) -> None:
        """Delete a rollout."""

    def settle_unrecorded(self, rollout_id: str, attempt: int) -> None:
        """Settle a rollout whose last events could not be committed, so that no other process continues it.

        If its end is committed, the journal keeps the rollout with its outcome. Otherwise it deletes the rollout. If
        the disk fails, the journal does this once writing works again. Do nothing for a settled rollout.
        """

    def repoint(self, entry: JournaledRollout) -> None:
        """Record the new destination of a rollout's calls."""

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        """Record how often the server's process died while the agent of a rollout ran.

        Only deaths after the last new reply to the agent count.
        """

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        """Keep a cancel for `seconds`, because its Init may still come. With 0 seconds, delete it."""

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        """Store the parts of an agent's version. The newest 64 versions are kept."""

    def sweep(self) -> None:
        """Delete the settled rollouts that are too old.

        While the journal is over its budget, also delete the oldest settled rollouts. A rollout gets older only while a
        process has the journal open. A jump of the wall clock does not make a rollout older.
        """

    def close(self) -> None:
        """Commit everything that is not committed yet, and release the files."""

    # Reading.

    @abstractmethod
    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """Return the next events of a rollout after number `after`: at most `limit`, or fewer if they are large."""

    @abstractmethod
    def annotations(self, rollout_id: str, attempt: int) -> Sequence[TrajectoryEvent]:
        """Return a rollout's committed events of the kind Annotated, in order."""

    @abstractmethod
    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        """Return events of an owner with positions above `after`, each with its position, and the next call's `after`.

        One call reads a limited number of positions, so it may return no events although more follow.
        """

    @abstractmethod
    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """Call `read` with a Trajectories, and return its result. A journal on disk calls it on another thread."""

    @abstractmethod
    def size(self, rollout_id: str, attempt: int) -> int:
        """Return approximately how many bytes an ended rollout takes in memory."""

    @abstractmethod
    async def entries(
        self, owner: str, after: int, limit: int, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> Sequence[JournaledRollout]:
        """Return an owner's rollouts with sequence numbers above `after`, in order of acceptance.

        With `newest_first`, return those with sequence numbers below `after` in the reverse order; then `after` 0 means
        no bound. The entries have no outcomes. Every rollout that matches the filter is included, and possibly others.
        This method never blocks the event loop for long.
        """

    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        """Return the committed attempts of a rollout with their outcomes. A journal in memory returns none."""
        return ()

    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        """Return the id of the rollout with this key, or "" if there is none."""
        return ""

    def unsettled(self) -> Sequence[JournaledRollout]:
        """Return the unsettled rollouts that the previous process left, in order of acceptance."""
        return ()

    def elapsed(self, entry: JournaledRollout) -> float:
        """Return the seconds since a rollout's acceptance.

        Time in which no process had the journal open does not count.
        """
        return 0.0

    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        """Return the cancels that add_tombstone() stored: owner, rollout id, attempt, and remaining seconds."""
        return ()

    def version(self, digest: str) -> Mapping[str, str]:
        """Return the parts of an agent's version, or an empty mapping if the version is not known."""
        return {}

    def has_room(self, owner: str) -> bool:
        """Return whether an owner may add a rollout.

        That is so if the budget is not full, or if the owner uses less than an even share of it.
        """
        return True

    def rollout_folder(self, sequence: int) -> Path | None:
        """Return the folder for the files of a rollout; None for a journal without files.

        The folder need not exist. It is deleted with the rollout, or before it if the files of all rollouts exceed the
        budget.
        """
        return None

    def figures(self) -> Figures | None:
        """Return the journal's size and the cost of its commits, or None for a journal without a file."""
        return None
