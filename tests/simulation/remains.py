"""Reads what a run has left, from outside: the rows of its journals and ledgers, and its files of credentials."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.types import Receipt, events
from osmosis_grpc.wire.event import kind_from_bytes, kind_to_bytes

if TYPE_CHECKING:
    from tests.simulation.world import World

DELIVERED, _ = kind_to_bytes(events.Delivered(Receipt.RECORDED, "", 1))


def note_remains(world: "World") -> None:
    """Record what is on the disks of a world, as `in journal`, `in ledger` and `credentials`."""
    for server in world.servers:
        journal = server.folder / "journal.db"
        if journal.is_file():
            _note_journal(world, server.name, journal)
        for _ in sorted((server.folder / "credentials").glob("*")):
            world.history.note(server.name, "credentials")
    for trainer in world.trainers:
        if trainer.ledger is not None and trainer.ledger.is_file():
            with closing(sqlite3.connect(trainer.ledger)) as database:
                for rollout, attempt in database.execute(
                    "SELECT rollout_id, attempt FROM rollout WHERE result_id IS NULL ORDER BY rollout_id"
                ):
                    world.history.note(trainer.name, "in ledger", rollout, attempt, what="without a result")


def _note_journal(world: "World", name: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        receipts: dict[int, list[str]] = {}
        for sequence, body in database.execute(
            "SELECT sequence, body FROM events WHERE kind = ? ORDER BY position", (DELIVERED,)
        ):
            kind = kind_from_bytes(DELIVERED, body)
            assert isinstance(kind, events.Delivered)
            receipts.setdefault(sequence, []).append(str(kind.receipt) if kind.receipt else kind.given_up)
        rows = database.execute(
            "SELECT r.sequence, rollout_id, attempt, state, settled, min(number), max(number), count(number) "
            "FROM rollouts r LEFT JOIN events e ON e.sequence = r.sequence GROUP BY r.sequence ORDER BY r.sequence"
        )
        for sequence, rollout, attempt, state, settled, first, last, count in rows:
            world.history.note(
                name,
                "in journal",
                rollout,
                attempt,
                state=state,
                settled=bool(settled),
                receipts=tuple(receipts.get(sequence, ())),
                events=(first, last, count),
            )
