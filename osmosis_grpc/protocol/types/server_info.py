"""Information about an agent server and its workers, as RolloutClient.info() and drain() return it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.types.jsontext import MAX_DEPTH
from osmosis_grpc.protocol.types.messages import ToolDict
from osmosis_grpc.protocol.types.requests import MAX_ID_CHARS
from osmosis_grpc.protocol.types.rollout_info import Capacity


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
    """The bounds and times of a server, as control.proto describes them. Times are in seconds."""

    max_message_bytes: int
    max_metadata_bytes: int
    max_json_depth: int = MAX_DEPTH
    max_rollout_id_chars: int = MAX_ID_CHARS
    agent_timeout: float | None
    """The most seconds of a rollout; None for no limit."""
    max_sent_bytes: int = 0
    max_reply_bytes: int = 0
    outcome_ttl: float = 0.0
    trainer_grace: float = 0.0
    chat_silence: float = 0.0
    chat_retry_min: float = 0.0
    chat_retry_max: float = 0.0
    outcome_retry_min: float = 0.0
    outcome_retry_max: float = 0.0
    heartbeat_interval: float = 0.0
    heartbeat_timeout: float = 0.0
    min_ping_interval: float = 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of a server that has several."""

    port: int
    journal_id: str = ""
    """The id of the worker's journal. Empty if the worker has not started yet."""


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
    features: tuple[str, ...] = ()
    """The features of the protocol that the server has."""
    current_time: float | None = None
    """The time of the answer by the server's clock, in Unix seconds; None if unknown."""
    workers: Sequence[Worker] = ()
    """All processes of the server, in the order of their ports. Empty if the server is one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """The rollouts that a server still has when a drain begins."""

    running: int
    queued: int
    undelivered: int
    """Ended rollouts whose outcome is not delivered."""


_POSITION = re.compile("([0-9]{1,3})=([0-9]{1,17})")


def parse_positions(token: str) -> dict[int, int]:
    """Return the position of each worker. A plain number is that of worker 0. Raises ValueError."""
    found: dict[int, int] = {}
    for text in token.split("/") if token else ():
        match = _POSITION.fullmatch(text if "=" in text else f"0={text}")
        if match is None:
            raise ValueError(f"{token!r:.100} is not the token of a page")
        found[int(match[1])] = int(match[2])
    return found


def positions_text(positions: Mapping[int, Any]) -> str:
    """Return the token for the positions of workers."""
    return "/".join(f"{worker}={position}" for worker, position in sorted(positions.items()))
