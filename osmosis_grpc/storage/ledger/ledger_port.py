"""The Ledger port: where a trainer stores rollouts, answered chats and completions, to continue after a restart.

`SqliteLedger` implements it. Another backend is one file: a subclass of Ledger.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.types import Completion

Then = Callable[[Any, LedgerError | None], None]
"""Called on the event loop with the value that was read, or with the error."""


class ChatRow(NamedTuple):
    """One row of an answered chat: a ChatRequest and its ChatResponse."""

    rollout_id: str
    attempt: int
    sample: str
    number: int
    continues: int
    """The chat that its tokens continue."""
    offered: str
    """What replaces the tools that it offered, in its body."""
    question: bytes
    reply: bytes


@dataclass(slots=True)
class LedgerRollout:
    """One rollout of the ledger."""

    rollout_id: str
    attempt: int
    server_key: str = ""
    """Its server: "target HOST:PORT" or "journal ID"; empty for a callback."""
    affinity_key: str = ""
    init: bytes | None = None
    """An InitRequest; None for a callback, and after the confirmation."""
    tools: bytes | None = None
    """A Tools message; None before the answer to its Init."""
    result_id: str | None = None
    completion: bytes | None = None
    """A Completion as it was received; None before that and after the confirmation."""
    confirmed: float | None = None
    """The time of the confirmation, by the wall clock; None before it."""
    chats: list[ChatRow] = field(default_factory=list)
    damage: str = ""
    """What is damaged in its rows; empty if nothing is."""


class Ledger(Protocol):
    """Keeps attachment ids, rollouts, answered chats, and completions until they are confirmed.

    Writes are committed in the order of the calls. `then` is called after the commit.
    """

    name: str
    """Names the ledger in error messages."""
    unconfirmed: dict[str, int]
    """The attempts of rollouts whose completion is not confirmed, by rollout id, oldest first."""

    def take_restored(self) -> list[LedgerRollout]:
        """Returns, once, the rollouts of an earlier process: unfinished ones with their chats, others without."""

    def attachment(self, server_key: str) -> tuple[str, str]:
        """Returns the attachment id for a server and the journal id that was last seen there."""

    def record_server(self, server_key: str, journal_id: str) -> None:
        """Record the journal id of a server that was connected."""

    def callback_id(self, use: Literal["run", "secret"]) -> str:
        """Returns the id of the run that callbacks name, or the secret that makes the credentials of callbacks."""

    def record_assignment(
        self, rollout_id: str, attempt: int, init: bytes, server_key: str, affinity_key: str, then: Then
    ) -> None:
        """Record a rollout before it is sent to a server."""

    def opened(self, rollout_id: str, attempt: int, tools: bytes) -> None:
        """Record the tools in the answer to an Init."""

    def chat(self, kept: ChatRow, then: Then, *, enter: bool) -> None:
        """Record an answered chat. `enter` is set for the first record of an attempt."""

    def complete(
        self,
        completion: Completion,
        data: bytes,
        then: Then,
        *,
        enter: bool,
        confirmed: bool,
        chats: Sequence[ChatRow] = (),
    ) -> None:
        """Record a completion, `data` in the form of the wire.

        `enter` is set for the first record of an attempt, `confirmed` for a completion that no caller waits for.
        `chats` replace the recorded ones.
        """

    async def confirm(self, rollout_id: str, attempt: int, result_id: str) -> None:
        """Record that a completion was used, and delete its chats. Idempotent. Raises LedgerError."""

    def drop(self, rollout_id: str, attempt: int) -> None:
        """Delete a rollout that ended without a completion."""

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Delete old rollouts. Keeps completions that are not confirmed."""

    def fetch(self, rollout_id: str, then: Then) -> None:
        """Read a LedgerRollout with its chats; None if there is none."""

    async def written(self) -> None:
        """Wait until the ledger has tried to commit every earlier write."""
