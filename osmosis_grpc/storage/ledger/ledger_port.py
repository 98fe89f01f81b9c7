"""What a ledger has of a rollout, for the trainer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import LedgerError

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
