"""Reads rollouts and events from the journal's file, for the server and for commands that inspect the journal."""

import json
import logging
import sqlite3
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from osmosis_grpc.protocol.types import EventKind, Fork, Group, JournaledRollout, RolloutFilter, TrajectoryEvent
from osmosis_grpc.protocol.wire.event import ANNOTATED, origin_from_bytes
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.open_trails import OpenTrail, open_trails
from osmosis_grpc.storage.journal.rows import Dropped, EventRow, RolloutRow, Trail, entry_of
from osmosis_grpc.storage.journal.schema import selection
from osmosis_grpc.storage.lock_file import is_held
from osmosis_grpc.storage.sqlite.database import look

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
"""The bytes after which a call reads no further events, because the event loop waits for the call."""
CHECKED_BYTES = 4 * 1024 * 1024
"""If an ended rollout has more bytes, an event's checksum is checked only when this event is read.

A check of all these events at once would block the event loop.
"""
WINDOW = 4096
"""The most positions that one call of all_events reads."""
_SELECT = "SELECT * FROM rollouts "
_EVENT = "SELECT * FROM main.events WHERE position = ?"
_ANNOTATED = """SELECT * FROM events WHERE position IN (SELECT value FROM json_each(?)) AND kind = ?
    ORDER BY position"""
_OWNED = """SELECT rollout_id, attempt, events.* FROM events JOIN rollouts USING (sequence)
    WHERE owner = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?"""
_NEW = """SELECT rollout_id, attempt, events.* FROM events JOIN rollouts USING (sequence)
    WHERE position > ? AND position <= ? AND (? = '' OR rollout_id = ? AND attempt = ?) ORDER BY position LIMIT ?"""
_OF_KINDS = """SELECT * FROM events WHERE position IN (SELECT value FROM json_each(?))
    AND (? = 0 OR kind IN (SELECT value FROM json_each(?))) ORDER BY position"""
_OPEN = """SELECT * FROM events
    WHERE position >= (SELECT min(accepted) FROM rollouts WHERE NOT settled)
    AND sequence IN (SELECT sequence FROM rollouts WHERE NOT settled) ORDER BY position"""


SLICE = 200
"""The most rollouts that one transaction drops."""
ROLLOUT_BYTES = 1024
"""About how many bytes a rollout takes in the file in addition to its events."""

_OLDEST = """SELECT sequence, rollout_id, attempt, positions, size, ended_at FROM rollouts
    WHERE settled AND ended_at < 9e999 ORDER BY ended_at LIMIT ?"""


class Reader:
    """Reads rollouts and events over a connection. The entries that it returns contain no credentials."""

    def __init__(self, database: sqlite3.Connection, *, frozen: bool = False) -> None:
        """`frozen` is whether all reads over the connection see the same commit."""
        self._database = database
        self._trails: dict[int, Trail] | None = {} if frozen else None
        """The trails of unfinished rollouts, by sequence. Finding one requires reading all later events."""

    @classmethod
    def look(cls, folder: Path) -> Self:
        """Return a Reader that sees the present content of the journal in a folder. Raises JournalError.

        A server can have the journal open at the same time.
        """
        path = folder / schema.FILE
        if not path.exists():
            raise schema.JournalError(f"there is no journal {path}")
        try:
            return cls(look(path, schema.JOURNAL), frozen=True)
        except sqlite3.Error as error:
            raise schema.JournalError(f"{path} cannot be read as a journal: {error}") from None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads in the block see the same commit."""
        if self._database.in_transaction:
            yield
            return
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            if self._database.in_transaction:  # SQLite ends the transaction after an error of the disk
                self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    @staticmethod
    def in_use(folder: Path) -> bool | None:
        """Return whether a process writes the journal in a folder; None if this cannot be determined."""
        return is_held(folder / schema.LOCK)

    def newest_time(self) -> float | None:
        """Return the time of the newest event, in Unix seconds; None without events."""
        found = self._database.execute("SELECT time FROM main.events ORDER BY position DESC LIMIT 1").fetchone()
        return None if found is None else float(found[0])

    def find(self, rollout_id: str) -> list[JournaledRollout]:
        """Return a rollout's attempts, with their outcomes."""
        statement = _SELECT + "WHERE rollout_id = ? ORDER BY attempt"
        if not self._database.execute(statement, (rollout_id,)).fetchall():
            return []
        with self.snapshot():
            rows = self._database.execute(statement, (rollout_id,)).fetchall()
            found = [self.entry(row, self.damage(row)) for row in map(RolloutRow._make, rows)]
        for entry in found:
            if entry.damage:
                log.error(
                    "rollout %s attempt %d is damaged in the journal: %s",
                    rollout_id,
                    entry.init.request.attempt,
                    entry.damage,
                )
        return found

    def attempts(self, rollout_id: str) -> list[int]:
        """Return the numbers of a rollout's attempts."""
        rows = self._database.execute(
            "SELECT attempt FROM rollouts WHERE rollout_id = ? ORDER BY attempt", (rollout_id,)
        )
        return [int(attempt) for (attempt,) in rows.fetchall()]

    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        """Return the id of the rollout with an idempotency key, or an empty text if there is no such rollout."""
        row = self._database.execute(
            "SELECT rollout_id FROM rollouts WHERE owner = ? AND idempotency_key = ?", (owner, idempotency_key)
        ).fetchone()
        return str(row[0]) if row else ""

    def newest(self, limit: int) -> list[str]:
        """Return the ids of the newest rollouts. The rollout that was accepted last comes first."""
        rows = self._database.execute("SELECT rollout_id FROM rollouts ORDER BY sequence DESC LIMIT ?", (limit,))
        return list(dict.fromkeys(row[0] for row in rows.fetchall()))

    def entries(
        self, owner: str | None, after: int, limit: int, where: RolloutFilter, *, newest_first: bool = False
    ) -> list[JournaledRollout]:
        """Return rollouts as Journal.entries does. The query applies the filter. Call this method in a snapshot().

        Without `owner`, return the rollouts of all owners.
        """
        rows = self.rows(owner, after, limit, where, newest_first=newest_first)
        return [self.entry(row, row.wrong(), outcome=False) for row in rows]

    def rows(
        self, owner: str | None, after: int, limit: int, where: RolloutFilter, *, newest_first: bool = False
    ) -> list[RolloutRow]:
        """Return the rows of the rollouts of entries(). It reads no event."""
        query, values = selection(owner, after, where, newest_first=newest_first)
        return [*map(RolloutRow._make, self._database.execute(query, (*values, limit)).fetchall())]

    def open_trails(self, sequences: Sequence[int], known: Mapping[int, int] | None = None) -> dict[int, OpenTrail]:
        """Return events of unsettled rollouts, by sequence; see open_trails.py."""
        return open_trails(self._database, sequences, known)

    def origin(self, row: RolloutRow) -> tuple[Group | None, Fork | None]:
        """Return the group and the fork of a rollout. Raises Damaged if its first event is damaged."""
        event = self._event(row.accepted)
        return (None, None) if row.group_id is None and row.forked_from is None else origin_from_bytes(event.body)

    def unsettled(self) -> list[tuple[RolloutRow, Trail]]:
        """Return the unsettled rollouts in order of acceptance, with the positions of their events."""
        rows = self._database.execute(_SELECT + "WHERE NOT settled ORDER BY sequence").fetchall()
        found = {row[0]: (RolloutRow._make(row), Trail()) for row in rows}
        with closing(self._database.execute(_OPEN)) as opened:
            for event in map(EventRow._make, opened):
                if event.sequence in found:
                    found[event.sequence][1].add(event)
        return list(found.values())

    def events_of(self, row: RolloutRow, kinds: Sequence[int]) -> tuple[list[TrajectoryEvent], bool]:
        """Return the events of an ended rollout of these kinds, or of all without `kinds`.

        Leaves damaged events out. Return also whether no event is damaged.
        """
        positions = json.dumps(array("Q", row.positions or b"").tolist())
        found: list[TrajectoryEvent] = []
        sound = True
        with closing(self._database.execute(_OF_KINDS, (positions, len(kinds), json.dumps(list(kinds))))) as rows:
            for event in map(EventRow._make, rows):
                if not event.sound:
                    sound = False
                    continue
                kind = event.read()
                found.append(TrajectoryEvent(row.rollout_id, row.attempt, event.event_number, event.time, kind))
        return found, sound

    def has_unsettled(self) -> bool:
        """Return whether a rollout is not settled."""
        return self._database.execute("SELECT 1 FROM rollouts WHERE NOT settled LIMIT 1").fetchone() is not None

    def overdue(self, before: float, beyond: int) -> list[Dropped]:
        """Return up to SLICE settled rollouts to drop. The rollout that ended first comes first.

        Includes each rollout that ended before `before`. Adds later rollouts until all of them have `beyond` bytes.
        """
        found: list[Dropped] = []
        with closing(self._database.execute(_OLDEST, (SLICE,))) as rows:
            for *row, ended_at in rows:
                if ended_at >= before and beyond <= 0:
                    break
                found.append(Dropped(*row))
                beyond -= found[-1].size + ROLLOUT_BYTES
        return found

    def known_sequences(self, sequences: Collection[int]) -> set[int]:
        """Return those of the sequence numbers whose rollouts are in the journal."""
        statement = "SELECT sequence FROM rollouts WHERE sequence IN (SELECT value FROM json_each(?))"
        return {sequence for (sequence,) in self._database.execute(statement, (json.dumps(list(sequences)),))}

    def row(self, rollout_id: str, attempt: int) -> RolloutRow | None:
        """Return the row of a rollout, or None if there is none. Raises Damaged."""
        one = self._database.execute(_SELECT + "WHERE rollout_id = ? AND attempt = ?", (rollout_id, attempt)).fetchone()
        if one is None:
            return None
        row = RolloutRow._make(one)
        if wrong := row.wrong():
            raise schema.Damaged(f"rollout {rollout_id} is damaged: {wrong}")
        return row

    def positions(self, rollout_id: str, attempt: int) -> "array[int]":
        """Return the positions of a rollout's events. Raises Damaged."""
        row = self.row(rollout_id, attempt)
        if row is None:
            return array("Q")
        return array("Q", row.positions) if row.positions is not None else self._trail(row).positions

    def events(self, rollout_id: str, attempt: int, positions: Sequence[int]) -> list[TrajectoryEvent]:
        """Return a rollout's events at these positions. Stop after READ_BYTES.

        Stop before a damaged event. Raises Damaged if the first event is damaged.
        """
        found: list[TrajectoryEvent] = []
        size = 0
        for position in positions:
            try:
                row = self._event(position)
            except schema.Damaged:
                if found:
                    break
                raise
            size += len(row.body)
            found.append(TrajectoryEvent(rollout_id, attempt, row.event_number, row.time, row.read()))
            if size > READ_BYTES:
                break
        return found

    def annotations(self, rollout_id: str, attempt: int, positions: "array[int]") -> list[TrajectoryEvent]:
        """Return the events of the kind Annotated at these positions. Raises Damaged."""
        rows = self._database.execute(_ANNOTATED, (json.dumps(positions.tolist()), ANNOTATED)).fetchall()
        found: list[TrajectoryEvent] = []
        for row in map(EventRow._make, rows):
            if not row.sound:
                raise schema.Damaged(f"event {row.event_number} of rollout {rollout_id} does not match its checksum")
            found.append(TrajectoryEvent(rollout_id, attempt, row.event_number, row.time, row.read()))
        return found

    def trajectory(self, rollout_id: str, attempt: int) -> Iterator[TrajectoryEvent]:
        """Return all events of an attempt. Raises Damaged."""
        positions = self.positions(rollout_id, attempt)
        while batch := self.events(rollout_id, attempt, positions):
            yield from batch
            positions = positions[len(batch) :]

    def all_events(
        self, owner: str, after: int, last: int, limit: int
    ) -> tuple[list[tuple[int, TrajectoryEvent]], int]:
        """Return an owner's events with positions above `after` and up to `last`, and the `after` of the next call.

        Log damaged events, and leave them out.
        """
        reached = min(last, after + WINDOW)
        found: list[tuple[int, TrajectoryEvent]] = []
        count = size = 0
        with closing(self._database.execute(_OWNED, (owner, after, reached, limit))) as rows:
            for rollout_id, attempt, *values in rows:
                row = EventRow._make(values)
                count += 1
                if not row.sound:
                    log.error("event %s of rollout %s is damaged and left out", row.event_number, rollout_id)
                    continue
                event = TrajectoryEvent(rollout_id, attempt, row.event_number, row.time, row.read())
                found.append((row.position, event))
                size += len(row.body)
                if size > READ_BYTES:
                    return found, row.position
        return found, row.position if count == limit else reached

    def last_position(self) -> int:
        """Return the position of the newest event, or 0 if there is no event."""
        return int(self._database.execute("SELECT max(position) FROM events").fetchone()[0] or 0)

    def new_events(self, after: int, rollout_id: str = "", attempt: int = 0) -> tuple[list[TrajectoryEvent], int]:
        """Return events of an attempt, or of all owners, with positions above `after`. Leaves damaged events out.

        Return also the `after` of the next call. It stays the same if the journal has no new event.
        """
        last, count = self.last_position(), 0
        found: list[TrajectoryEvent] = []
        with closing(self._database.execute(_NEW, (after, last, rollout_id, rollout_id, attempt, WINDOW))) as rows:
            for name, of, *values in rows:
                row = EventRow._make(values)
                after = row.position
                count += 1
                if row.sound:
                    found.append(TrajectoryEvent(name, of, row.event_number, row.time, row.read()))
        return found, after if count == WINDOW else max(after, last)

    def fact(self, name: str) -> Any:
        """Return the value of a fact, or None if there is no such fact."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def damage(self, row: RolloutRow) -> str:
        """Describe the damage in a rollout's row or events. Return an empty text if there is no damage."""
        return row.wrong() or self._trail(row).wrong(row)

    def _trail(self, row: RolloutRow) -> Trail:
        """Return the Trail of a rollout's events. Read only positions and numbers if the rollout is large."""
        known = self._trails.get(row.sequence) if self._trails is not None else None
        if known is not None:
            return known
        trail = Trail()
        where = "position >= ? AND sequence = ?"
        values: tuple[Any, ...] = row.accepted, row.sequence
        if row.positions is not None:
            where = "position IN (SELECT value FROM json_each(?))"
            values = (json.dumps(array("Q", row.positions).tolist()),)
        unchecked = row.positions is not None and row.size > CHECKED_BYTES
        query = f"SELECT {'position, number' if unchecked else '*'} FROM events WHERE {where} ORDER BY position"  # noqa: S608
        with closing(self._database.execute(query, values)) as rows:
            for found in rows:
                if unchecked:
                    trail.put(*found)
                else:
                    trail.add(EventRow._make(found))
        if self._trails is not None and row.positions is None:
            self._trails[row.sequence] = trail
        return trail

    def entry(self, row: RolloutRow, damage: str, *, outcome: bool = True) -> JournaledRollout:
        """Return the rollout of a row. `damage` is empty for a sound rollout.

        If `outcome` is False, the result has no outcome.
        """
        row = row.usable() if damage else row
        first: EventKind | None = None
        ended: EventKind | None = None
        try:
            first = self.event_at(row.accepted)
            if (outcome or damage) and row.ended:
                ended = self.event_at(row.ended)
        except schema.Damaged as error:
            damage = damage or str(error)
        return entry_of(row, first, ended, damage, outcome=outcome)

    def event_at(self, position: int) -> EventKind:
        """Return the event at a position. Raises Damaged."""
        return self._event(position).read()

    def _event(self, position: int) -> EventRow:
        found = self._database.execute(_EVENT, (position,)).fetchone()
        if found is None:
            raise schema.Damaged(f"event {position} is not in the journal")
        row = EventRow._make(found)
        if not row.sound:
            raise schema.Damaged(f"event {row.event_number} (row {position}) does not match its checksum")
        return row
