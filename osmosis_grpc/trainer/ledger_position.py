"""The position of a ledger, which a program stores in its checkpoints: Trainer.position() and Trainer.confirm().

A position lists the outcomes that the program has received and not confirmed. The weights in the checkpoint were
trained on them. The program first writes the checkpoint and then confirms its position, so it may be killed any time:

- Before the checkpoint is complete, the next process loads the earlier checkpoint. No later outcome is confirmed, so
  the same requests get the same outcomes again.
- After that, the next process confirms the position of the checkpoint, and no outcome is trained on twice.

The ledger records the number of a position before it confirms the outcomes of that position. So a checkpoint that is
older than the newest confirmed position is refused, because the outcomes after it would not come again.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.storage.ledger import SqliteLedger

NOTE = "osmosis_grpc.position"
"""The name of the note in the ledger that has the number of the newest confirmed position."""
SPARE = 1024
"""About this many confirmed outcomes may be remembered before they are searched for and forgotten."""


class LedgerPosition:
    """The outcomes that a program has received from its trainer. Without a ledger, it remembers nothing."""

    def __init__(self, ledger: SqliteLedger | None) -> None:
        self._ledger = ledger
        self._taken: dict[str, tuple[int, str]] = {}
        """The attempt and result id of each outcome, by rollout id. Some may be confirmed already."""

    def take(self, outcomes: Iterable[RolloutOutcome]) -> None:
        """Remember outcomes that the program receives now."""
        if self._ledger is None:
            return
        self._taken |= {each.rollout_id: (each.attempt, each.result_id) for each in outcomes}
        if len(self._taken) > 2 * len(self._ledger.unconfirmed) + SPARE:
            self._taken = self._unconfirmed(self._ledger)

    def read(self, ledger: SqliteLedger) -> dict[str, Any]:
        """See Trainer.position()."""
        self._taken = self._unconfirmed(ledger)
        outcomes = [[rollout_id, *rest] for rollout_id, rest in self._taken.items()]
        return {"number": _confirmed(ledger) + 1, "outcomes": outcomes}

    def _unconfirmed(self, ledger: SqliteLedger) -> dict[str, tuple[int, str]]:
        kept = ledger.unconfirmed
        return {name: taken for name, taken in self._taken.items() if kept.get(name) == taken[0]}


async def confirm(ledger: SqliteLedger, position: Mapping[str, Any]) -> None:
    """Confirm the outcomes of a position. Idempotent. Raises the errors of Trainer.confirm()."""
    try:
        number, outcomes = int(position["number"]), [(str(a), int(b), str(c)) for a, b, c in position["outcomes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument("position", f"is not from Trainer.position(): {error!r}") from None
    newest = _confirmed(ledger)
    if number < newest:
        raise FailedPrecondition(
            f"the checkpoint has position {number} of the ledger {ledger.name}, and position {newest} is confirmed: "
            "the outcomes since this checkpoint do not come again. Load the newest checkpoint, or go on from this one "
            "with a new ledger and new rollout ids"
        )
    if number > newest:
        await ledger.write_note(NOTE, json.dumps({"number": number}))
    await asyncio.gather(*(ledger.confirm(*outcome) for outcome in outcomes))


def _confirmed(ledger: SqliteLedger) -> int:
    """Return the number of the newest confirmed position; 0 if there is none."""
    text = ledger.note(NOTE)
    return 0 if text is None else int(json.loads(text)["number"])
