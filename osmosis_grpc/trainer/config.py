"""The configuration of a trainer, except for addresses, secrets and files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How a Trainer treats rollouts, chats and servers. Raises ValueError for a number that is not positive."""

    lost_after: float = 120.0
    """Seconds after which an unreachable server is lost. Its rollouts run on other servers, with a higher attempt.
    Rollouts end with Unavailable if no server can be reached for so long."""
    max_attempts: int = 5
    """A rollout ends with Unavailable after so many lost attempts. The pauses between them grow."""
    max_open_chats: int = 16_384
    """How many chats may be open. Attached servers share them evenly; each gets at least one."""
    delta: bool = True
    """Whether a chat refers to earlier chats instead of repeating its whole history."""
    ttl: float = 7200.0
    """Seconds after which the trainer forgets a rollout that no server mentions. Use at least twice the server's record
    TTL."""
    longest_pause: float = 10.0
    """Seconds: the longest pause between two connection attempts."""
    callback_target: str = ""
    """With callbacks: HOST:PORT at which agent servers reach this trainer; by default the address where it listens."""
    callback_server_name: str = ""
    """With callbacks over TLS: the name in this trainer's certificate, if it is not the host of the target."""

    def __post_init__(self) -> None:
        for name in ("lost_after", "max_open_chats", "ttl", "longest_pause", "max_attempts"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is not greater than 0")

    @property
    def pauses(self) -> tuple[float, float]:
        """Seconds: the first and the longest pause between two connection attempts."""
        return min(0.25, self.longest_pause), self.longest_pause
