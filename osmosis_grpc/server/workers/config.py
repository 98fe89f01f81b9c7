"""The place of a worker among the workers of its server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """What a worker knows about its server."""

    index: int
    """The number of this worker, from 0."""
    ports: Mapping[int, int]
    """The gRPC port of each worker, by its number. It changes when a worker leaves for good."""
    accepting: int
    """The workers below this number accept new rollouts."""
    secret: str = field(repr=False)
    """The workers show it to each other."""
    sockets: Path
    """A folder that only the user of the server can read. Each worker has a socket in it."""

    @property
    def leaves(self) -> bool:
        """Whether this worker only finishes what it has."""
        return self.index >= self.accepting

    def socket(self, worker: int, kind: str = "grpc") -> Path:
        """Return the path of a worker's socket for calls of its siblings."""
        return self.sockets / f"{worker}.{kind}"
