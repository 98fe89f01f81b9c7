"""The engine's ports. `server`, the gateway and tests implement them.

A port is a function type or a Protocol, and is independent of the transport.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from osmosis_grpc.agent.tool_runs import CallOrigins
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatRef,
    ChatRequest,
    ChatResponse,
    EventKind,
    Message,
    Receipt,
    RolloutInfo,
    RolloutOutcome,
    TrajectoryEvent,
)

ChatModel = Callable[[ChatRequest], Awaitable[ChatResponse]]
"""Returns model replies. A remote trainer or a policy in this process implements it.

It returns the same reply for the same rollout, attempt, sample and number. The engine awaits the result. To cancel a
chat, the engine calls cancel() of the result. If the result has no cancel(), the engine cancels the task that awaits
the result. Raises osmosis_grpc.protocol.errors.CallError. If the error is `retryable`, the engine retries.
"""

ResultSink = Callable[[RolloutOutcome], Awaitable[Receipt]]
"""Receives outcomes, and records each result once.

InvalidArgument, Aborted and Unimplemented mean that it will never record the outcome. After any other error, the engine
retries.
"""

EventSink = Callable[[TrajectoryEvent], None]
"""Receives every event after its commit, for example to write a log file or to count a metric."""

EndSink = Callable[[RolloutInfo], None]
"""Receives every rollout that ended, even if its events cannot be committed.

The outcome can contain references to chats instead of the tokens of the chats, see Peer.accepts_references.
"""


@dataclass(frozen=True, slots=True)
class RolloutFolders:
    """The folders for files of a rollout. They need not exist."""

    own: Path | None
    """It outlives the process, and is deleted with the record of the rollout. None without a state folder."""
    original: Path | None = None
    """The folder of the rollout from which this rollout forks. None if it is not a fork, or if there is none."""
    replays: bool = False
    """Whether a command compares this run with a recorded one."""


class Session(Protocol):
    """The engine's side of a RolloutContext. Every method raises RolloutEndedError after the end."""

    calls: CallOrigins
    """The tool calls of the replies that the agent got."""

    @property
    def debug_enabled(self) -> bool:
        """Whether the server writes logged events to a file."""

    def check_open(self) -> None:
        """Raise RolloutEndedError if the rollout has ended."""

    def metrics(self) -> Any:
        """Return the metrics so far, as an object with the attributes of RolloutMetrics."""

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
        wanted: Callable[[], Awaitable[Any]] | None = None,
    ) -> tuple[int, ChatResponse]:
        """Return the number of a chat within its sample, and its reply.

        The trainer's reply becomes part of the rollout when `wanted` returns. If the call is cancelled earlier, the
        reply is not used.
        """

    def add_sample(self, name: str | None, *, policy: str, parent: ChatRef | None, train: bool | None) -> str:
        """Begin another sample, and return its name. Raises ValueError."""

    def sample_names(self) -> tuple[str, ...]:
        """Return the names of the samples that have begun, in the order in which they began."""

    def sample_messages(self, name: str) -> Sequence[Message] | None:
        """Return the conversation of a sample up to the newest reply of the policy; None without such a reply."""

    def begin_grading(self) -> None:
        """End the time limit of the agent, and begin that of the grader."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Free the slot of the rollout until the context manager ends, and show what the rollout waits for."""

    async def ended_before(self) -> Collection[int]:
        """Return the indexes of the rollouts of this rollout's group that ended before a restart of the server."""

    def folders(self) -> RolloutFolders:
        """Return the folders for files of the rollout."""

    def train(self, sample: str, wish: bool) -> None:
        """Set whether the author wants a sample to be trained on."""

    def drop(self, sample: str, chat: int) -> None:
        """Mark a reply as dropped. Raises ValueError for an unknown sample or chat."""

    def limit(self, sample: str, limit: str) -> None:
        """Record that a limit has ended a sample, unless another chat continues it. See Sample.cut for `limit`."""

    def set_reward(self, value: float, *, sample: str, chat: int, name: str) -> None:
        """Set a reward. Raises ValueError for an unknown sample or chat, and for a wrong name."""

    def newest_chat(self, sample: str) -> int:
        """Return the number of the newest chat of a sample. Return 0 if it has none, or if there is no such sample."""

    def record(self, kind: EventKind) -> None:
        """Append to the trajectory."""

    def count_tool_call(self, latency_ms: float) -> None:
        """Count a tool call in the metrics."""

    def tool_running(self, name: str) -> Callable[[str], float]:
        """Record that a tool has started, and return a function to call when it has ended.

        This function gets the call id of the tool's message, counts the call and returns its duration in seconds.
        """


current_session: ContextVar[Session | None] = ContextVar("osmosis_grpc_session", default=None)
"""The session, in the agent's task and in the tasks that this task starts; None in other tasks."""
