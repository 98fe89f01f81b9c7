"""The Ledger port. A trainer stores rollouts, answered chats and outcomes in a ledger, to continue after a restart.

`SqliteLedger` implements the port. Another backend is a subclass of Ledger.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.types import RolloutOutcome

Then = Callable[[Any, LedgerError | None], None]
"""A function that is called on the event loop with the value that was read, or with the error."""


class ChatRow(NamedTuple):
    """One row of an answered chat: a ChatRequest and its ChatResponse."""

    rollout_id: str
    attempt: int
    sample: str
    chat_number: int
    parent_chat: int
    """The number of the chat whose tokens this chat continues, or 0 if there is no such chat."""
    offered: str
    """The digest of the tools that the chat offered."""
    question: bytes
    reply: bytes


@dataclass(slots=True)
class LedgerRollout:
    """One rollout of the ledger."""

    rollout_id: str
    attempt: int
    server_key: str = ""
    """The rollout's server as "target HOST:PORT" or "journal ID". Empty before the rollout is assigned to a server."""
    affinity_key: str = ""
    init: bytes | None = None
    """An InitRequest in wire form. It is None before the rollout is assigned to a server, and after the
    confirmation."""
    tools: bytes | None = None
    """A Tools message in wire form. It is None before the answer to the Init."""
    result_id: str | None = None
    outcome: bytes | None = None
    """A RolloutOutcome as it was received. It is None before the rollout's outcome, and after the confirmation."""
    confirmed: float | None = None
    """The time of the confirmation by the wall clock, or None before the confirmation."""
    chats: list[ChatRow] = field(default_factory=list)
    damage: str = ""
    """A description of the damage in the rollout's rows, or empty if there is no damage."""


class Ledger(Protocol):
    """Stores attachment ids, rollouts, answered chats and outcomes. Keeps an outcome until its confirmation.

    Writes are committed in the order of the calls. `then` is called after the commit.
    """

    name: str
    """Names the ledger in error messages."""
    unconfirmed: dict[str, int]
    """The attempt of each rollout whose outcome is not confirmed, by rollout id. The oldest outcome is first."""

    def take_restored(self) -> list[LedgerRollout]:
        """Return the rollouts of an earlier process. Only unfinished rollouts have their chats.

        Later calls return an empty list.
        """

    def attachment(self, server_key: str) -> tuple[str, str]:
        """Return the attachment id for a server, and the last known journal id of the server."""

    def record_server(self, server_key: str, journal_id: str) -> None:
        """Record the journal id of a server that was connected."""

    def callback_id(self, use: Literal["run", "secret"]) -> str:
        """Return the id of the run that callbacks name, or the secret that makes the credentials of callbacks."""

    def record_assignment(
        self, rollout_id: str, attempt: int, init: bytes, server_key: str, affinity_key: str, then: Then
    ) -> None:
        """Record a rollout before it is sent to a server."""

    def opened(self, rollout_id: str, attempt: int, tools: bytes) -> None:
        """Record the tools in the answer to an Init."""

    def chat(self, kept: ChatRow, then: Then, *, enter: bool) -> None:
        """Record an answered chat. `enter` is True for the first record of an attempt."""

    def complete(
        self,
        outcome: RolloutOutcome,
        data: bytes,
        then: Then,
        *,
        enter: bool,
        confirmed: bool,
        chats: Sequence[ChatRow] = (),
    ) -> None:
        """Record an outcome. `data` is the outcome in wire form.

        `enter` is True for the first record of an attempt. `confirmed` is True for an outcome that no caller waits
        for. `chats` replace the recorded chats.
        """

    async def confirm(self, rollout_id: str, attempt: int, result_id: str) -> None:
        """Record that an outcome was used, and delete the rollout's chats. Idempotent. Raises LedgerError."""

    def drop(self, rollout_id: str, attempt: int, then: Then) -> None:
        """Delete a rollout that ended without an outcome, and what lower attempts of it have left."""

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Delete old rollouts. Keeps outcomes that are not confirmed."""

    def fetch(self, rollout_id: str, then: Then) -> None:
        """Read a rollout, and call `then` with a LedgerRollout and its chats, or with None if there is no rollout."""

    async def written(self) -> None:
        """Wait until the ledger has tried to commit every earlier write."""
