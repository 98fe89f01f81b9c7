"""What an agent notes about one rollout, besides its events."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.compat.agentic.reading import Call, Unreadable
from osmosis_grpc.compat.agentic.tool_calls import ToolResult
from osmosis_grpc.protocol.types import Message

RunCalls = Callable[[], Awaitable[list[ToolResult]]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent reports at the end of a rollout."""

    reward: float | None = None
    """A reward, which is added to those of steps and interactions; None for no reward."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """More data for the outcome."""


class Episode:
    """One rollout of an agent. This class notes nothing."""

    async def begin(self) -> None:
        """Prepare the rollout. Called before its first chat."""

    async def asking(self, number: int) -> None:
        """Prepare for a chat. Called before each chat with its number."""

    async def act(self, number: int, reply: Message, calls: Sequence[Any], run: RunCalls) -> list[ToolResult]:
        """Return the results of the calls of a reply. `run` runs them, and `calls` are in OpenAI's format."""
        return await run()

    def acted(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Note the calls of a reply and their results."""

    async def end(self) -> Report:
        """Return the report. Called after the last reply, while the sandbox is still open."""
        return Report()
