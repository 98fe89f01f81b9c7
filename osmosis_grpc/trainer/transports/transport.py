"""What a Trainer needs of a transport."""

from collections.abc import Iterable
from typing import Protocol

from osmosis_grpc.storage.ledger.ledger import LedgerRollout


class Transport(Protocol):
    """Connects a trainer to its agent servers, from listen() to close()."""

    @property
    def address(self) -> str:
        """HOST:PORT where the trainer listens, the port as bound; empty if it does not listen."""

    def listen(self) -> None:
        """Take the port; calls are answered after begin(). Raises OSError, ValueError."""

    def add_servers(self, kept: Iterable[LedgerRollout]) -> None:
        """Add the named servers, and each server to which the ledger's rollouts were sent."""

    async def begin(self) -> None:
        """Answer calls and connect to the servers."""

    def leave(self) -> None:
        """Prepare to close: connections that end from now on are not lost."""

    async def close(self) -> None:
        """End every connection and stop listening."""
