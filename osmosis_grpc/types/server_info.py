"""What an agent server says of itself, as RolloutClient.info() and drain() return it."""

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.types.rollout_info import Capacity
from osmosis_grpc.types.tools import ToolDict


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoopInfo:
    """An agent loop that a server hosts."""

    name: str
    tools: Sequence[ToolDict]
    """The tools that it offers a request that names none in particular."""
    version: str
    """A digest of its source; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds that a server sets."""

    max_message_bytes: int
    max_metadata_bytes: int
    max_json_depth: int
    max_rollout_id_chars: int
    agent_timeout: float | None
    """Seconds that a rollout may take at most; None: as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """An agent server."""

    version: str
    protocol_min: int
    protocol_max: int
    process_uuid: str
    """Another one after each start."""
    journal_id: str
    """Names its store; a server that has forgotten its rollouts has another one."""
    start_time: float
    """Unix time."""
    agent_loops: Sequence[AgentLoopInfo]
    capacity: Capacity
    limits: ServerLimits
    draining: bool
    """Whether it takes no new rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """What a server still has when a drain begins."""

    running: int
    queued: int
    undelivered: int
    """Rollouts that have ended and are not delivered."""
