"""The engine's ports. `server`, the gateway and tests implement them.

A port is a function or a Protocol: an object with its methods implements it. No port knows a transport.
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

ChatModel = Callable[[ChatRequest], Awaitable[ChatResponse]]
"""Returns model replies: a remote trainer, or a policy in this process.

Returns the same reply for the same rollout, attempt, sample and number. The engine awaits the result. To cancel a chat
it calls cancel() of the result, or cancels the task that awaits a result without cancel(). Raises
osmosis_grpc.errors.CallError; the engine retries after a `retryable` one.
"""

ResultSink = Callable[[Completion], Awaitable[Outcome]]
"""Receives completions, and records each result once.

Raises InvalidArgument, Aborted or Unimplemented for a completion that it will never record. The engine retries after
any other error.
"""

EventSink = Callable[[TrajectoryEvent], None]
"""Receives every event after its commit: a log file, a metric."""

EndSink = Callable[[RolloutInfo], None]
"""Receives every ended rollout, also one whose events cannot be committed.

The completion may refer to chats instead of having their tokens, see Peer.accepts_references.
"""


class Clock(Protocol):
    """The time. Tests replace it."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def time(self) -> float:
        """Unix seconds."""


class Session(Protocol):
    """The engine's side of a RolloutContext. Every method raises RolloutEndedError after the end."""

    def check_open(self) -> None:
        """Raise RolloutEndedError if the rollout has ended."""

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
        """Note that a tool has begun. Returns a function to call after it, with the call id of its message.

        That function counts the call and returns its duration in seconds.
        """
