"""The configuration of a trainer, except for addresses, secrets and files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How a Trainer treats rollouts, chats and servers. Raises ValueError for a number that is not positive."""

    lost_after: float = 120.0
    """If a server cannot be reached for this many seconds, its rollouts run elsewhere as higher attempts.
    If no server can be reached for this many seconds, rollouts end with Unavailable."""
    max_attempts: int = 5
    """A rollout ends with Unavailable after this many lost attempts. The pauses between the attempts grow."""
    max_open_chats: int = 16_384
    """How many chats all servers together may have open. Attached servers get equal shares, at least one chat each."""
    delta: bool = True
    """Whether a chat refers to earlier chats instead of repeating its whole history."""
    ttl: float = 7200.0
    """The trainer forgets a rollout after this many seconds without a message about it. Use at least twice the server's
    record TTL."""
    longest_pause: float = 10.0
    """The longest pause between two connection attempts, in seconds."""
    resolve_every: float = 10.0
    """A `dns:///` target is resolved again after this many seconds, and also when a connection has ended."""
    callback_target: str = ""
    """The HOST:PORT to which agent servers send callbacks. The default is the address where this trainer listens."""
    callback_server_name: str = ""
    """For callbacks over TLS: the name in this trainer's certificate, if it differs from the host of the target."""
    max_connection_age: float | None = None
    """A connection of an agent server gets GOAWAY after this many seconds. Rollouts continue."""
    otel: bool = False
    """Whether the trainer makes OpenTelemetry spans, with the process's tracer provider. Needs the extra `otel`."""
    otel_content: bool = False
    """Whether these spans contain the messages of chats."""

    def __post_init__(self) -> None:
        if self.max_connection_age is not None and not self.max_connection_age > 0:
            raise ValueError(f"max_connection_age: {self.max_connection_age} is not greater than 0")
        for name in ("lost_after", "max_open_chats", "ttl", "longest_pause", "max_attempts", "resolve_every"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is not greater than 0")

    @property
    def pauses(self) -> tuple[float, float]:
        """The first and the longest pause between two connection attempts, in seconds."""
        return min(0.25, self.longest_pause), self.longest_pause
