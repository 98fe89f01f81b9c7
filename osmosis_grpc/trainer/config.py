"""The settings of a trainer that are neither addresses, nor secrets, nor files."""

from dataclasses import dataclass

MAX_OPEN_CHATS = 16_384
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How a Trainer treats rollouts, chats and servers. Raises ValueError for a number that is not positive."""

    lost_after: float = 120.0
    """Seconds after which a server that cannot be reached is lost: its rollouts run elsewhere, with a higher attempt.
    If no server can be reached for so long, rollouts end with Unavailable."""
    max_attempts: int = MAX_ATTEMPTS
    """A rollout ends with Unavailable when servers have lost so many of its attempts. The pause between two attempts
    grows."""
    max_open_chats: int = MAX_OPEN_CHATS
    """How many chats may be open. Attached servers share it evenly; each may have at least one open."""
    delta: bool = True
    """Whether a chat refers to earlier chats instead of repeating its whole history."""
    ttl: float = 7200.0
    """Seconds after which a rollout is forgotten that no server has mentioned. Use twice the server's record TTL or
    more."""
    longest_pause: float = 10.0
    """Seconds: the pauses between two tries to reach a server grow up to this."""
    callback_target: str = ""
    """With callbacks: HOST:PORT at which agent servers reach this trainer; by default where it listens."""
    callback_server_name: str = ""
    """With callbacks over TLS: the name in this trainer's certificate, if it is not the host that servers call."""

    def __post_init__(self) -> None:
        for name in ("lost_after", "max_open_chats", "ttl", "longest_pause", "max_attempts"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is not greater than 0")

    @property
    def pauses(self) -> tuple[float, float]:
        """Seconds: the first and the longest pause between two tries to reach a server."""
        return min(0.25, self.longest_pause), self.longest_pause
