"""The ports: what the engine sees of the world. The edge gives it real ones.

A port is a Protocol; whatever has the methods is one. None of them knows a transport.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from osmosis_grpc.types import ChatPurpose, ChatRequest, ChatResponse, Completion, EventKind, Outcome, TrajectoryEvent


class ChatModel(Protocol):
    """Something that gives model replies: a trainer across a wire, or a policy in this process.

    Called again with the same rollout, attempt, sample and number, it gives the same reply.
    Raises osmosis_grpc.errors.CallError; those that are `retryable` are asked again.
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


class Store(Protocol):
    """Where events are kept. Positions order the events of all rollouts and never repeat."""

    journal_id: str
    """Names this store; a store that has forgotten has another."""

    def append(self, event: TrajectoryEvent, size: int) -> int:
        """Commit an event of about `size` bytes; returns its position."""

    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """A rollout's events with numbers above `after`."""

    def all_events(self, after: int, limit: int) -> Sequence[tuple[int, TrajectoryEvent]]:
        """All rollouts' events with positions above `after`."""

    def size(self, rollout_id: str, attempt: int) -> int:
        """About how many bytes a rollout takes."""

    def forget(self, rollout_id: str, attempt: int) -> None:
        """Drop a rollout."""

    @property
    def last_position(self) -> int:
        """The position of the newest event; 0 before the first."""

    @property
    def forgotten_position(self) -> int:
        """The highest position ever dropped; 0 while none was."""


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
        self, messages: Sequence[Mapping[str, Any]], *, sample: str, purpose: ChatPurpose,
        tools: Sequence[Any] | None, params: Mapping[str, Any],
    ) -> ChatResponse: ...  # fmt: skip

    def add_sample(self, name: str | None) -> str:
        """Begin another sample."""

    def record(self, kind: EventKind) -> None:
        """Append to the trajectory."""

    def count_tool_call(self, latency_ms: float) -> None:
        """Count a tool call in the metrics."""

    def tool_running(self, name: str) -> Callable[[], None]:
        """A tool began; call what is returned when it is over."""
