"""What an agent notes about one rollout, besides its events."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agentic.reading import Call, Unreadable
from osmosis_grpc.agentic.tool_calls import ToolResult


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

    def acted(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Note the calls of a reply and their results."""

    async def end(self) -> Report:
        """Return the report. Called after the last reply, while the sandbox is still open."""
        return Report()
