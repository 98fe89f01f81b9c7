"""The ports: what the engine sees of the world. The edge gives it real ones.

A port is a Protocol; whatever has the methods is one. None of them knows a transport.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from osmosis_grpc.types import (
    ChatPurpose,
    ChatRequest,
    ChatResponse,
    Completion,
    EventKind,
    Outcome,
    RolloutInfo,
    TrajectoryEvent,
)


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
