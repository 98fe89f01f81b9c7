"""The bounds the engine works within. Frozen; read from nowhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Times are in seconds, sizes in bytes."""

    max_concurrent: int = 100
    """Rollouts that run at once."""
    max_queued: int | None = None
    """Rollouts that may wait; None means twice max_concurrent."""
    max_concurrent_per_owner: int | None = None
    """How many of them one owner's may be; None means all that others leave."""
    max_attachments_per_owner: int | None = None
    """How many attachments one owner may have; None means all that others leave of 1,024."""
    record_ttl: float = 3600.0
    """How long an ended rollout is kept, and how long its completion is tried."""
    memory_budget: int = 256 * 1024 * 1024
    """How much the ended rollouts may take together."""
    tombstone_ttl: float = 600.0
    """How long a cancel waits for its Init."""
    max_tombstones: int = 16_384
    """How many of one owner's may wait so."""
    agent_timeout: float | None = 1800.0
    """How long a rollout may run whose request names no agent_timeout, counted from its start; None means no limit."""
    get_tools_timeout: float = 10.0
    """How long an awaitable get_tools may take."""
    stop_again_after: tuple[float, ...] = (1.0, 3.0)
    """When an agent that was cancelled is cancelled again; after the last its rollout ends anyway."""
    trainer_grace: float = 120.0
    """How long a trainer may be away before a chat gives up, and before an attachment's rollouts do."""
    chat_silence: float = 50.0
    """How long one try of a chat waits before it is asked again under its number."""
    retry_delay: tuple[float, float] = (0.5, 5.0)
    """The first and the longest pause between tries of a chat."""
    outbox_delay: tuple[float, float] = (0.5, 30.0)
    """The first and the longest pause between tries of a completion."""
    idle_interval: float = 15.0
    """How often an idle event stream says that it lives."""
    blocked_after: float = 0.25
    """How long the event loop may be blocked before somebody is told."""
    stalled_after: float = 60.0
    """How long a rollout may run without an event or a tool call before a warning is logged."""
    sweep_interval: float = 10.0
    """How often what is past its time is dropped."""

    def __post_init__(self) -> None:
        if self.max_concurrent < 1 or self.queue_limit < 0 or not self.record_ttl > 0:
            raise ValueError("max_concurrent is at least 1, max_queued at least 0, record_ttl greater than 0")
        for most in (self.max_concurrent_per_owner, self.max_attachments_per_owner):
            if most is not None and most < 1:
                raise ValueError("max_concurrent_per_owner and max_attachments_per_owner are at least 1")
        if not self.stalled_after > 0 or (self.agent_timeout is not None and not self.agent_timeout > 0):
            raise ValueError("agent_timeout and stalled_after are greater than 0")

    @property
    def queue_limit(self) -> int:
        """Rollouts that may wait."""
        return 2 * self.max_concurrent if self.max_queued is None else self.max_queued
