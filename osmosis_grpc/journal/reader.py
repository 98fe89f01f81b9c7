"""What stands in a journal: for the process that writes it, and for others that only look."""

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_grpc.journal import schema
from osmosis_grpc.journal.database import look
from osmosis_grpc.types import Callback, CallbackTls, EndedBy, Entry, InitRequest, RolloutState, TrajectoryEvent, events
from osmosis_grpc.wire.event import kind_from_bytes

READ_BYTES = 1024 * 1024
"""Events are read until they have so many bytes: the event loop waits for it."""
_SELECT = """SELECT sequence, rollout_id, attempt, owner, place, target, delta, tls, agent_loop, digest,
    accept_time, start_time, end_time, state, accepted, ended, last_number, settled FROM rollouts """
_ALL = """SELECT position, rollout_id, attempt, number, time, kind, body FROM events JOIN rollouts USING (sequence)
    WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"""
_OPEN = """SELECT position, sequence, length(body) FROM events
    WHERE position >= (SELECT min(accepted) FROM rollouts WHERE NOT settled)
    AND sequence IN (SELECT sequence FROM rollouts WHERE NOT settled) ORDER BY position"""


class Reader:
    """Reads rollouts and events over a connection. Entries come without their secrets."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @classmethod
    def look(cls, folder: Path) -> "Reader":
        """The journal in a folder as it stands now, also while a server holds it. Raises JournalError."""
        path = folder / schema.FILE
        if not path.exists():
            raise schema.JournalError(f"there is no journal {path}")
        try:
            return cls(look(path, schema.JOURNAL))
        except sqlite3.Error as error:
            raise schema.JournalError(f"{path} cannot be read as a journal: {error}") from None

    def close(self) -> None:
        """Look no longer."""
        self._database.close()

    def find(self, rollout_id: str) -> list[Entry]:
        """A rollout's attempts, with their completions."""
        rows = self._database.execute(_SELECT + "WHERE rollout_id = ? ORDER BY attempt", (rollout_id,))
        return [self._entry(row) for row in rows.fetchall()]

    def named(self, owner: str, idempotency_key: str) -> str:
        """The rollout that a key names; empty when there is none."""
        row = self._database.execute(
            "SELECT rollout_id FROM rollouts WHERE owner = ? AND idempotency_key = ?", (owner, idempotency_key)
        ).fetchone()
        return str(row[0]) if row else ""

    def newest(self, limit: int) -> list[str]:
        """The ids of the rollouts that were accepted last, the newest first."""
        rows = self._database.execute("SELECT rollout_id FROM rollouts ORDER BY sequence DESC LIMIT ?", (limit,))
        return list(dict.fromkeys(row[0] for row in rows.fetchall()))

    def entries(
        self, owner: str, after: int, limit: int, *, states: Sequence[RolloutState] = (), group_id: str = "",
        unsettled: bool = False,
    ) -> list[Entry]:  # fmt: skip
        """See Journal. The filters are conditions of the query: rows that they leave out are not decoded."""
        values: list[Any]
        conditions, values = ["sequence > ?", "owner = ?"], [after, owner]
        if unsettled:
            conditions.append("NOT settled")
        elif states:
            conditions.append(f"(NOT settled OR state IN ({', '.join('?' * len(states))}))")
            values += [state.value for state in states]
        if group_id:  # the id is in the Accepted event as it is
            conditions.append("(SELECT instr(body, ?) FROM events WHERE position = accepted)")
            values.append(group_id.encode())
        where = f"WHERE {' AND '.join(conditions)} ORDER BY sequence LIMIT ?"
        rows = self._database.execute(_SELECT + where, (*values, limit))
        return [self._entry(row, whole=False) for row in rows.fetchall()]

    def unsettled(self) -> list[Entry]:
        """The rollouts to which something is still to happen, in order of acceptance."""
        rows = self._database.execute(_SELECT + "WHERE NOT settled ORDER BY sequence").fetchall()
        return [self._entry(row) for row in rows]

    def open_events(self) -> Iterator[tuple[int, int, int]]:
        """Of what is unsettled: every event's position, its rollout's sequence, and its bytes."""
        with closing(self._database.execute(_OPEN)) as rows:
            yield from rows

    def positions(self, rollout_id: str, attempt: int) -> "array[int]":
        """Where a rollout's events are; of one that has not ended, they are looked for."""
        row = self._database.execute(
            "SELECT positions, sequence, accepted FROM rollouts WHERE rollout_id = ? AND attempt = ?",
            (rollout_id, attempt),
        ).fetchone()
        if row is None:
            return array("Q")
        if row[0] is not None:
            return array("Q", row[0])
        found = self._database.execute(
            "SELECT position FROM events WHERE position >= ? AND sequence = ? ORDER BY position", (row[2], row[1])
        )
        return array("Q", (position for (position,) in found.fetchall()))

    def events(self, rollout_id: str, attempt: int, positions: Sequence[int]) -> list[TrajectoryEvent]:
        """A rollout's events at these positions, or as many of them as are good to read at once."""
        found: list[TrajectoryEvent] = []
        size = 0
        for position in positions:
            number, unix, kind, body = self._row(position)
            size += len(body)
            found.append(TrajectoryEvent(rollout_id, attempt, number, unix, kind_from_bytes(kind, body)))
            if size > READ_BYTES:
                break
        return found

    def trajectory(self, rollout_id: str, attempt: int) -> Iterator[TrajectoryEvent]:
        """All events of an attempt."""
        positions = self.positions(rollout_id, attempt)
        while batch := self.events(rollout_id, attempt, positions):
            yield from batch
            positions = positions[len(batch) :]

    def all_events(self, after: int, upto: int, limit: int) -> list[tuple[int, TrajectoryEvent]]:
        """All rollouts' events with positions above `after`, `upto` the last."""
        found: list[tuple[int, TrajectoryEvent]] = []
        size = 0
        with closing(self._database.execute(_ALL, (after, upto, limit))) as rows:
            for position, rollout_id, attempt, number, unix, kind, body in rows:
                event = TrajectoryEvent(rollout_id, attempt, number, unix, kind_from_bytes(kind, body))
                found.append((position, event))
                size += len(body)
                if size > READ_BYTES:
                    break
        return found

    def fact(self, name: str) -> Any:
        """A fact's value; None when there is none."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def number(self, statement: str) -> int:
        """What a statement gives, being one whole number; 0 for NULL."""
        return int(self._database.execute(statement).fetchone()[0] or 0)

    def _entry(self, row: Sequence[Any], *, whole: bool = True) -> Entry:
        (sequence, _, _, owner, place, target, delta, tls, agent_loop, digest, accept_time, start_time, end_time,
         state, accepted, ended, last_number, settled) = row  # fmt: skip
        first = kind_from_bytes(*self._row(accepted)[2:])
        assert isinstance(first, events.Accepted)
        callback = None
        if target:
            secure = None if tls is None else CallbackTls(tls)
            callback = Callback(target=target, delta=bool(delta), tls=secure, run_id=place)
        init: InitRequest = replace(first.init, callback=callback, digest=digest)
        completion, ended_by = None, EndedBy()
        if whole and ended:
            last = kind_from_bytes(*self._row(ended)[2:])
            assert isinstance(last, events.Ended)
            completion, ended_by = last.completion, last.by
        return Entry(
            init=init, tools=first.tools, owner=owner, place=place, sequence=sequence, agent_loop=agent_loop,
            accept_time=accept_time, start_time=start_time, end_time=end_time, state=RolloutState(state),
            completion=completion, ended_by=ended_by, undelivered=bool(ended and not settled), settled=bool(settled),
            last_number=last_number,
        )  # fmt: skip

    def _row(self, position: int) -> tuple[int, float, int, bytes]:
        """An event's number, time, kind and body."""
        statement = "SELECT number, time, kind, body FROM events WHERE position = ?"
        row: tuple[int, float, int, bytes] | None = self._database.execute(statement, (position,)).fetchone()
        if row is None:
            raise schema.JournalError(f"event {position} is not in the journal: its file was changed by others")
        return row
