"""Records what is left on the disks of a world after its end: journals, ledgers, and files of credentials."""

import sqlite3
from contextlib import closing
from pathlib import Path

from osmosis_grpc.protocol.types import events
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.storage import Reader
from tests.simulation.history import History


def record_journal(history: History, server: str, folder: Path) -> None:
    """Records each rollout in a journal, with its events, and each file of credentials."""
    with closing(Reader.look(folder)) as reader:
        for entry in reader.entries("", 0, 100_000, EVERY):
            request = entry.init.request
            _record_rollout(history, server, reader, request.rollout_id, request.attempt, settled=entry.settled)
    for file in sorted((folder / "credentials").glob("*")):
        history.note(server, "credentials", file=file.name)


def _record_rollout(
    history: History, server: str, reader: Reader, rollout_id: str, attempt: int, *, settled: bool
) -> None:
    numbers: list[int] = []
    receipts: list[str] = []
    state = "open"
    for event in reader.trajectory(rollout_id, attempt):
        numbers.append(event.event_number)
        if isinstance(event.kind, events.Ended):
            state = str(event.kind.outcome.status)
            if event.kind.outcome.finish_reason == "superseded":
                receipts.append("superseded")
        elif isinstance(event.kind, events.Delivered):
            receipts.append(str(event.kind.receipt) if event.kind.receipt is not None else "expired")
    found = (numbers[0], numbers[-1], len(numbers)) if numbers else (0, 0, 0)
    history.note(
        server, "in journal", rollout_id, attempt, state=state, settled=settled, receipts=tuple(receipts), events=found
    )


def record_ledger(history: History, trainer: str, file: Path) -> None:
    """Records each rollout and each chat that a ledger still keeps."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT rollout_id, attempt, outcome IS NOT NULL FROM rollout ORDER BY 1").fetchall()
        for rollout_id, attempt, ended in rows:
            history.note(trainer, "in ledger", rollout_id, attempt, what="an outcome" if ended else "an Init")
        (chats,) = database.execute("SELECT count(*) FROM chat").fetchone()
    history.note(trainer, "left", what="chats in the ledger", count=chats)
