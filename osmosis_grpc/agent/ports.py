"""The ports: what the engine sees of the world. The edge gives it real ones.

A port is a Protocol; whatever has the methods is one. None of them knows a transport.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from osmosis_grpc.types import (
    ChatPurpose,
    ChatRequest,
    ChatResponse,
    Completion,
    EventKind,
    JournaledRollout,
    Outcome,
    RolloutInfo,
    RolloutState,
    TrajectoryEvent,
)

T = TypeVar("T")
Trajectories = Callable[[str, int], Iterable[TrajectoryEvent]]
"""Returns all committed events of a rollout, by its id and attempt."""


class ChatModel(Protocol):
    """Something that gives model replies: a trainer across a wire, or a policy in this process.

    Called again with the same rollout, attempt, sample and number, it gives the same reply.
    What it returns is awaited; where that has a cancel(), this gives the chat up, and elsewhere a
    task around it is cancelled. Raises osmosis_grpc.errors.CallError; those that are `retryable` are asked again.
    """

    def __call__(self, request: ChatRequest, /) -> Awaitable[ChatResponse]: ...


class ResultSink(Protocol):
    """Something that takes completions. Called again with the same result, it records it once.

    Raises InvalidArgument, Aborted or Unimplemented when it will never take this one, anything
    else when it wants to be asked again.
    """

    def __call__(self, completion: Completion, /) -> Awaitable[Outcome]: ...


class EventSink(Protocol):
    """Something that wants to see every event after its commit: a log file, a metric."""

    def __call__(self, event: TrajectoryEvent, /) -> None: ...


class EndSink(Protocol):
    """Something that wants to see every rollout once it has ended, also where its events cannot be committed.

    It gets the completion as the server has it: where the trainer keeps the chats, only by reference.
    """

    def __call__(self, rollout: RolloutInfo, /) -> None: ...


class Store(Protocol):
    """Where events are kept. Positions order the events of all rollouts and never repeat.

    Only what is committed is shown.
    """

    journal_id: str
    """Names this store; a store that has forgotten has another."""
    durable: bool
    """Whether it outlives the process; then it counts bytes by itself."""
    problem: str
    """Why nothing can be written now; empty while it can."""
    committed: Callable[[Sequence[Any], bool], None]
    """Set by whoever appends: told the tokens of what was committed, or (false) cannot be."""

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """Take an event of about `size` bytes; true when it is committed already, else `committed` tells.

        A rollout's first event comes with its entry.
        """

    def barrier(self, then: Callable[[bool], None]) -> None:
        """Tell when all that was taken so far is committed, at once where it is; false when some of it cannot be."""

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """A rollout's events with numbers above `after`; at most `limit`, or what is good to read at once."""

    def all_events(self, after: int, limit: int) -> Sequence[tuple[int, TrajectoryEvent]]:
        """All rollouts' events with positions above `after`."""

    async def read_apart(self, read: Callable[[Trajectories], T]) -> T:
        """Return read(trajectories); where that takes long, it is called off the event loop."""

    def size(self, rollout_id: str, attempt: int) -> int:
        """About how many bytes an ended rollout takes in memory."""

    def forget(self, rollout_id: str, attempt: int) -> None:
        """Drop a rollout."""

    @property
    def live_size(self) -> int:
        """About how many bytes the rollouts that have not ended take in memory."""

    @property
    def last_position(self) -> int:
        """The position of the newest event; 0 before the first."""

    @property
    def forgotten_position(self) -> int:
        """The highest position ever dropped; 0 while none was."""


class Journal(Store, Protocol):
    """A store that outlives the process. What ended need not stay in memory: it is found here.

    What reads it, the methods of Store included, raises Unavailable when the disk cannot be read;
    forget and sweep then leave what they do not find to the next sweep.
    """

    def repoint(self, entry: JournaledRollout) -> None:
        """A rollout's calls go elsewhere from now on."""

    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        """A rollout's attempts, as far as they are committed."""

    def named(self, owner: str, idempotency_key: str) -> str:
        """The rollout that a key names; empty when there is none."""

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
        """The owner's rollouts in order of acceptance, from after a sequence on, without completions.

        Leaves out settled rollouts in other states or, with `unsettled`, all settled ones, and rollouts whose request
        does not have the group's id anywhere. Reads off the event loop.
        """

    def unsettled(self) -> Sequence[JournaledRollout]:
        """The rollouts to which something is still to happen, in order of acceptance."""

    crashed: bool
    """Whether the process before ended without closing the journal."""

    def elapsed(self, entry: JournaledRollout) -> float:
        """Returns for how many seconds a rollout has been accepted, without the time in which no process had it."""

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        """Set how often the server's process died while a rollout's agent ran, since its last new reply."""

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        """Remember for so many seconds a cancel whose Init may still come; 0 forgets it."""

    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        """Returns the cancels of add_tombstone(), with the seconds that are left for each."""

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        """Keep what an agent's version is made of; the newest 64 are kept."""

    def version(self, digest: str) -> Mapping[str, str]:
        """What an agent's version is made of; empty where it is not known."""

    def sweep(self) -> None:
        """Drop what is past its time, and the oldest settled rollouts beyond the budget, in slices.

        Time is that of processes that have the journal: no jump of the wall clock makes a rollout older.
        """

    @property
    def full(self) -> bool:
        """Whether there is no room for another rollout, because undelivered ones fill it."""

    def has_room(self, owner: str) -> bool:
        """Whether an owner may add a rollout: it is not full, or the owner has less than a share."""

    @property
    def last_sequence(self) -> int:
        """The highest place in the order of acceptance that was ever given."""


class Clock(Protocol):
    """Time, so that a test can bend it."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def time(self) -> float:
        """Unix seconds."""


class Session(Protocol):
    """What stands behind a RolloutContext. Every method raises RolloutEndedError after the end."""

    def check_open(self) -> None:
        """Raise RolloutEndedError when the rollout has ended."""

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
    ) -> ChatResponse: ...

    def add_sample(self, name: str | None) -> str:
        """Begin another sample."""

    def record(self, kind: EventKind) -> None:
        """Append to the trajectory."""

    def count_tool_call(self, latency_ms: float) -> None:
        """Count a tool call in the metrics."""

    def tool_running(self, name: str) -> Callable[[str], float]:
        """A tool began. What is returned is called once it is over, with the call id that its message answers.

        That counts the call, and returns the seconds that it took.
        """
