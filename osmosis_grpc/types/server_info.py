"""Information about an agent server, as RolloutClient.info() and drain() return it."""

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.types.jsontext import MAX_DEPTH
from osmosis_grpc.types.requests import MAX_ID_CHARS
from osmosis_grpc.types.rollout_info import Capacity
from osmosis_grpc.types.tool_dicts import ToolDict


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoopInfo:
    """An agent loop that a server hosts."""

    name: str
    tools: Sequence[ToolDict]
    """The tools that the agent loop lists without a request."""
    version: str
    """A digest of its source; empty if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds that a server sets."""

    max_message_bytes: int
    max_metadata_bytes: int
    max_json_depth: int = MAX_DEPTH
    max_rollout_id_chars: int = MAX_ID_CHARS
    agent_timeout: float | None
    """The most seconds of a rollout; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """An agent server."""

    version: str
    protocol_min: int
    protocol_max: int
    process_id: str
    """The id of the process. Each start makes a new id."""
    journal_id: str
    """The id of the server's journal. A server that has lost its rollouts has a new id."""
    start_time: float
    """Unix time."""
    agent_loops: Sequence[AgentLoopInfo]
    capacity: Capacity
    limits: ServerLimits
    draining: bool
    """Whether the server refuses new rollouts because it drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """The rollouts that a server still has when a drain begins."""

    running: int
    queued: int
    undelivered: int
    """Ended rollouts whose outcome is not delivered."""
