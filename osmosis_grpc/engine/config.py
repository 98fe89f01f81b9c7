"""The configuration of the engine: its limits and timeouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types.requests import own_params


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The limits and timeouts of the engine. Times are in seconds, and sizes in bytes."""

    max_concurrent: int = 100
    """The largest number of rollouts that run at once."""
    max_queued: int | None = None
    """The largest number of rollouts that wait. None means twice max_concurrent."""
    max_concurrent_per_owner: int | None = None
    """The largest number of rollouts of one owner that run at once. None means no limit besides max_concurrent."""
    max_attachments_per_owner: int | None = None
    """The largest number of attachments of one owner. None means no limit besides the server's limit of 1,024."""
    record_ttl: float = 3600.0
    """How long an ended rollout is kept, and how long its delivery is retried."""
    memory_budget: int = 256 * 1024 * 1024
    """The memory that all rollouts together may take."""
    tombstone_ttl: float = 600.0
    """How long the cancel of an unknown rollout is kept, in case its Init still arrives."""
    max_tombstones: int = 16_384
    """The largest number of such cancels of one owner."""
    agent_timeout: float | None = 1800.0
    """How long a rollout may run if its request has no agent_timeout. None means no limit."""
    get_tools_timeout: float = 10.0
    """How long an async get_tools may take."""
    stop_again_after: tuple[float, ...] = (1.0, 3.0)
    """If an agent does not stop when it is cancelled, it is cancelled again after each of these times.

    If it still does not stop after the last one, its rollout ends without it.
    """
    trainer_grace: float = 120.0
    """How long a trainer may be away. After this time, its chats fail, and the rollouts of its attachment end."""
    chat_silence: float = 50.0
    """The timeout of one try of a chat. After a timeout, the chat is sent again under the same number."""
    heartbeat_interval: float = 15.0
    """Each side of an attachment sends a heartbeat if it has sent no frame for this time."""
    heartbeat_timeout: float = 45.0
    """A stream of an attachment ends if no frame has come from the trainer for this time. The trainer does the same."""
    retry_delay: tuple[float, float] = (0.5, 5.0)
    """The first and the longest pause between tries of a chat."""
    outbox_delay: tuple[float, float] = (0.5, 30.0)
    """The first and the longest pause between tries of a delivery."""
    idle_interval: float = 15.0
    """The interval of heartbeats in an idle event stream."""
    blocked_after: float = 0.25
    """How long the event loop may be blocked before a warning is logged."""
    stalled_after: float = 60.0
    """How long a rollout may run without an event or a tool call before a warning is logged."""
    sweep_interval: float = 10.0
    """The interval at which old records and tombstones are dropped."""
    pin_sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that replace those in the agents' chats. A value in a trainer's completion_params has
    precedence over a value here. A judge's chats keep their own parameters."""

    def __post_init__(self) -> None:
        if self.max_concurrent < 1 or self.queue_limit < 0 or not self.record_ttl > 0:
            raise ValueError("max_concurrent is at least 1, max_queued at least 0, record_ttl greater than 0")
        for most in (self.max_concurrent_per_owner, self.max_attachments_per_owner):
            if most is not None and most < 1:
                raise ValueError("max_concurrent_per_owner and max_attachments_per_owner are at least 1")
        if not self.stalled_after > 0 or (self.agent_timeout is not None and not self.agent_timeout > 0):
            raise ValueError("agent_timeout and stalled_after are greater than 0")
        if not 0 < self.heartbeat_interval < self.heartbeat_timeout:
            raise ValueError("heartbeat_interval is greater than 0 and less than heartbeat_timeout")
        object.__setattr__(self, "pin_sampling", own_params(self.pin_sampling, "pin_sampling"))

    @property
    def queue_limit(self) -> int:
        """The largest number of rollouts that wait."""
        return 2 * self.max_concurrent if self.max_queued is None else self.max_queued
