"""The Journal port: what the engine asks of the place where it keeps rollouts and their events.

`osmosis_grpc.storage` implements it: in memory, and in SQLite. Another backend is one more class with these methods;
`tests/storage/test_journal_port.py` runs the contract over every backend.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from osmosis_grpc.types import JournaledRollout, RolloutState, TrajectoryEvent

T = TypeVar("T")
Trajectories = Callable[[str, int], Iterable[TrajectoryEvent]]
"""Returns all committed events of a rollout, by its id and attempt."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a journal, for its metrics."""

    bytes: int
    """Of the file and of its write-ahead log."""
    commits: int
    commit_seconds: float
    """The time of all commits."""


class Journal(Protocol):
    """Keeps rollouts and their events. Positions order the events of all rollouts and never repeat.

    Readers see only committed events. What reads raises Unavailable when the disk cannot be read; forget and sweep
    leave what they cannot read to the next sweep.
    """

    journal_id: str
    """Names this journal. A journal that has lost its content has a new id."""
    durable: bool
    """Whether it outlives the process. A durable journal counts bytes by itself, and `find` returns settled rollouts;
    of one that is not durable, the engine keeps ended rollouts in memory."""
    crashed: bool
    """Whether the previous process ended without closing the journal."""
    problem: str
    """Why nothing can be written now; empty while writing works."""
    on_commit: Callable[[Sequence[Any], bool], None]
    """Called after each commit with the tokens of its appends and True; with False if they cannot be committed."""
    on_problem: Callable[[str], None]
    """Called with the new `problem` each time it changes."""

    @property
    def last_position(self) -> int:
        """The position of the newest committed event; 0 before the first."""

    @property
    def forgotten_position(self) -> int:
        """The highest position that was ever dropped; 0 before that."""

    @property
    def last_sequence(self) -> int:
        """The highest sequence number, in the order of acceptance, that was ever given to a rollout."""

    @property
    def live_size(self) -> int:
        """About how many bytes the events of unfinished rollouts take in memory."""

    # Writing.

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """Append an event of about `size` bytes. Returns True if it is committed now; else `on_commit` gets `token`.

        The first event of a rollout comes with its entry.
        """

    def barrier(self, then: Callable[[bool], None]) -> None:
        """Call `then` after the commit of all appends so far; with False when one of them cannot be committed."""

    def repoint(self, entry: JournaledRollout) -> None:
        """Record the new destination of a rollout's calls."""

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        """Record how often the server's process died while a rollout's agent ran, since its last new reply."""

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        """Keep for so many seconds a cancel whose Init may still come; 0 deletes it."""

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        """Keep the parts of an agent's version. The newest 64 versions are kept."""

    def forget(self, rollout_id: str, attempt: int) -> None:
        """Delete a rollout."""

    def sweep(self) -> None:
        """Delete settled rollouts that are past their time, and the oldest ones while the journal is over its budget.

        Time passes only while a process has the journal open: no jump of the wall clock makes a rollout older.
        """

    def close(self) -> None:
        """Commit everything that waits, and release the files."""

    # Reading.

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """Return a rollout's events with numbers above `after`: at most `limit`, fewer if they are large."""

    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        """Return events of an owner with positions above `after`, each with its position, and where to go on from.

        One call looks at a bounded number of positions: it may return no event though more follow.
        """

    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """Return read(trajectories). A journal on disk calls it on another thread."""

    def size(self, rollout_id: str, attempt: int) -> int:
        """Return about how many bytes an ended rollout takes in memory."""

    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        """Return the committed attempts of a rollout, with their completions; none if the journal is not durable."""

    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        """Return the id of the rollout with this key; an empty text if there is none."""

    async def entries(
        self,
        owner: str,
        after: int,
        limit: int,
        *,
        states: Sequence[RolloutState] = (),
        group_id: str = "",
        unsettled: bool = False,
    ) -> Sequence[JournaledRollout]:
        """Return an owner's rollouts in order of acceptance, from after a sequence on, without completions.

        The filters are hints: they may leave rollouts in that do not match, but leave none out that does. `states` and
        `unsettled` only concern settled rollouts. Never blocks the event loop for long.
        """

    def unsettled(self) -> Sequence[JournaledRollout]:
        """Return the unsettled rollouts that the previous process left, in order of acceptance."""

    def elapsed(self, entry: JournaledRollout) -> float:
        """Return the seconds since a rollout's acceptance, without the time in which no process had the journal."""

    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        """Return the cancels of add_tombstone: owner, rollout id, attempt, and the seconds that are left."""

    def version(self, digest: str) -> Mapping[str, str]:
        """Return the parts of an agent's version; empty if it is not known."""

    def has_room(self, owner: str) -> bool:
        """Return whether an owner may add a rollout: the budget is not full, or the owner uses less than a share."""

    def figures(self) -> Figures | None:
        """Return the journal's size and the cost of its commits; None if it has no file."""
