"""The Journal port over SQLite.

Events stand in the order of their positions, in their wire form; a rollout's row knows the
positions of its events, so that the table of events needs no other index. What is over is
read from here by whoever asks; of what is not, memory holds the positions.
"""

import asyncio
import functools
import json
import logging
import sqlite3
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from osmosis_grpc.engine.journal import Figures, Trajectories
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.clock import JournalClock
from osmosis_grpc.storage.journal.credentials import has_secrets
from osmosis_grpc.storage.journal.folder import Folder
from osmosis_grpc.storage.journal.open_rollouts import Key, OpenRollout, OpenRollouts
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.reading import read_now, read_on_thread
from osmosis_grpc.storage.journal.retention import EVENT_BYTES, Dropped, Retention
from osmosis_grpc.storage.journal.rows import accepted_columns, callback_column
from osmosis_grpc.storage.journal.writer import Batch, Latest, Token, Writer
from osmosis_grpc.storage.sqlite.checksum import event_sum
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.types import CompletionStatus, JournaledRollout, RolloutState, TrajectoryEvent, events
from osmosis_grpc.wire.event import kind_to_bytes

RECORDED = 1.0
"""Seconds after which the journal's time is recorded again, with the next event."""
CACHED = 256
"""Rollouts that were asked for lately."""
CACHED_BYTES = 64 * 1024
"""The most bytes of the Inits of one of them."""
_FACT = schema.FACT
_VERSION = "agent version "
"""What the names of these facts begin with."""
VERSIONS = 64
"""Versions of agents that are kept."""
_OLD_VERSIONS = """DELETE FROM facts WHERE name IN (SELECT name FROM facts WHERE name LIKE 'agent version %'
    ORDER BY json_extract(value, '$.time') DESC LIMIT -1 OFFSET ?)"""
_REPOINT = "UPDATE rollouts SET attachment_id = ?, callback = ?, accept_sum = ? WHERE sequence = ?"
_DEATHS = "UPDATE rollouts SET deaths = ?, deaths_sum = ? WHERE sequence = ?"
_DELETE = """DELETE FROM events WHERE position IN (SELECT value FROM json_each(?))
    AND sequence IN (SELECT value FROM json_each(?))"""
_TOMBSTONE = "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?, ?)"

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


def _reads(method: "Callable[Concatenate[SqliteJournal, P], R]") -> "Callable[Concatenate[SqliteJournal, P], R]":
    """Make a method raise Unavailable when the disk cannot be read."""

    @functools.wraps(method)
    def read(self: "SqliteJournal", /, *args: P.args, **named: P.kwargs) -> R:
        return read_now(self._reader, lambda: method(self, *args, **named))

    return read


class SqliteJournal:
    """Opens the journal in a folder. Raises JournalError. Belongs to the running event loop."""

    def __init__(
        self,
        folder: Path,
        *,
        record_ttl: float = 3600.0,
        budget: int = 10 * 1024**3,
        supervisor: Supervisor | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = found = Folder(folder)
        try:
            self._clock = JournalClock(found.clock, monotonic)
            self._begin(found, record_ttl, budget, supervisor or Supervisor("the journal"))
        except BaseException:
            found.close()
            raise

    def _begin(self, found: Folder, record_ttl: float, budget: int, supervisor: Supervisor) -> None:
        self.reads = found.reads
        """The connection that reads."""
        self.secrets = found.secrets
        """Where credentials are kept apart from the journal's file."""
        self._reader = Reader(found.reads)
        self.journal_id = found.journal_id
        self.forgotten_position, self.last_sequence = found.forgotten_position, found.last_sequence
        self.last_position = self._written = found.last_position
        self.crashed = not found.closed
        """Whether the process before ended without closing the journal."""
        self._recorded = found.clock
        """The journal's time that is written."""
        self.durable = True
        self.problem = ""
        self.on_problem: Callable[[str], None] = lambda problem: None
        """Told why nothing can be written, and an empty text when that is over."""
        self.on_commit: Callable[[Sequence[Any], bool], None] = lambda tokens, ok: None
        self.open_rollouts = OpenRollouts(budget)
        self._found: OrderedDict[str, Sequence[JournaledRollout]] = OrderedDict()
        self._dropping: dict[int, str] = {}
        """Rollouts that are being deleted, by their sequence: it is not committed yet."""
        self._retention = Retention(found.reads, self._clock, record_ttl, budget, self._drop, self.barrier)
        self._loop = asyncio.get_running_loop()
        self.writer = Writer(found.file, self._report, self._report_problem, self._retention.measured, supervisor)
        """The thread that commits."""

    def close(self) -> None:
        """Commit what waits, and let others open the folder."""
        self._retention.close()
        self._record_clock(self._clock.now())
        self.writer.batch().latest["closed"] = Latest(_FACT, schema.fact("closed", 1))
        self.writer.close()
        self._folder.close()

    def figures(self) -> "Figures":
        """Returns what the journal takes and what its commits took."""
        files = (self._folder.path, self._folder.path.with_name(f"{self._folder.path.name}-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return Figures(size, self.writer.commits, self.writer.commit_seconds)

    # What is written.

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        """See Journal. `size` is of no use here."""
        number, body = kind_to_bytes(event.kind)
        try:
            self._append(event, number, body, token, entry)
        except Exception as error:  # rows and positions may no longer agree: nothing more is committed
            self.writer.broken(error)
            self._loop.call_soon(self.on_commit, [token], False)
        return False

    def _append(
        self, event: TrajectoryEvent, number: int, body: bytes, token: Any, entry: JournaledRollout | None
    ) -> None:
        self._written = position = self._written + 1
        key = event.rollout_id, event.attempt
        batch = self.writer.batch()
        if entry is not None:
            rollout = self.open_rollouts.add(OpenRollout(entry.sequence, key, entry.owner, position, self._clock.now()))
            self._accept(batch, entry, rollout)
        else:
            rollout = self.open_rollouts[key]
        rollout.positions.append(position)
        self.open_rollouts.grow(rollout, len(body) + EVENT_BYTES)
        now = self._clock.now()
        if now >= self._recorded + RECORDED:
            self._record_clock(now)
        row = position, rollout.sequence, event.number, event.time, number, body
        batch.rows[schema.EVENT].append((*row, event_sum(*row)))
        batch.tokens.append((rollout, position, token))
        note = _NOTES.get(type(event.kind))
        if note is not None:
            note(self, batch, rollout, event)

    def _accept(self, batch: Batch, entry: JournaledRollout, rollout: OpenRollout) -> None:
        init = entry.init
        self.last_sequence = max(self.last_sequence, entry.sequence)
        state, rest = RolloutState.ACCEPTED.value, (1, 0, 0)
        batch.rows[schema.ACCEPT].append(
            (
                *accepted_columns(entry, rollout.accepted, rollout.accepted_at),
                state,
                *rest,
                schema.end_sum((entry.sequence, *rollout.end, None, *rest)),
                0,
                schema.deaths_sum(entry.sequence, 0),
            )
        )
        if has_secrets(init):
            batch.before.append(lambda: self.secrets.put(init))

    def _start(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        rollout.start_time = event.time

    def _end(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        assert isinstance(event.kind, events.Ended)
        completion = event.kind.completion
        rollout.settled = (completion.status, completion.finish_reason) == (CompletionStatus.CANCELLED, "superseded")
        self.open_rollouts.end(rollout)
        rollout.end = (
            completion.status.value,
            rollout.start_time,
            event.time,
            rollout.positions[-1],
            self._clock.now(),
        )
        row = (rollout.sequence, *rollout.end, rollout.positions.tobytes(), event.number, rollout.size, rollout.settled)
        batch.rows[schema.END].append((*row, schema.end_sum(row)))
        if rollout.settled:
            batch.after.append(lambda: self.secrets.drop(*rollout.key))

    def _settle(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        rollout.settled = True
        written = rollout.positions.tobytes(), event.number, rollout.size
        end = schema.end_sum((rollout.sequence, *rollout.end, *written, 1))
        batch.rows[schema.SETTLE].append((rollout.sequence, *written, end))
        batch.after.append(lambda: self.secrets.drop(*rollout.key))  # the acknowledgement is on disk

    def repoint(self, entry: JournaledRollout) -> None:
        """See Journal."""
        init = entry.init
        rollout = self.open_rollouts.get(init.request.rollout_id, init.request.attempt)
        if rollout is None or rollout.settled:
            return
        *_, check = accepted_columns(entry, rollout.accepted, rollout.accepted_at)
        values = (entry.attachment_id, callback_column(init), check, entry.sequence)
        self.writer.batch().latest[entry.sequence] = Latest(_REPOINT, values, lambda: self.secrets.put(init))

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        """See Journal."""
        row = deaths, schema.deaths_sum(entry.sequence, deaths), entry.sequence
        self.writer.batch().statements.append((_DEATHS, row))

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        """See Journal."""
        until = self._clock.now() + seconds if seconds > 0 else 0.0
        row = schema.tombstone(owner, rollout_id, attempt, until)
        self.writer.batch().latest[owner, rollout_id] = Latest(_TOMBSTONE, row)

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        """See Journal."""
        value = json.dumps({"time": time.time(), "parts": dict(parts)})
        fact = schema.fact(_VERSION + digest, value)
        self.writer.batch().statements += [(_FACT, fact), (_OLD_VERSIONS, (VERSIONS,))]

    def barrier(self, then: Callable[[bool], None]) -> None:
        """See Journal."""
        self.writer.batch().barriers.append(then)

    def forget(self, rollout_id: str, attempt: int) -> None:
        """See Journal. What cannot be read now is left to the sweep."""
        rollout = self.open_rollouts.get(rollout_id, attempt)
        if rollout is not None:
            self.open_rollouts.close(rollout)
        with suppress(sqlite3.Error):
            rows = self.reads.execute(
                "SELECT sequence, rollout_id, attempt, positions, size FROM rollouts "
                "WHERE rollout_id = ? AND attempt = ?",
                (rollout_id, attempt),
            ).fetchall()
            self._drop([Dropped(*row) for row in rows])
            if rows:
                self.secrets.drop(rollout_id, attempt)

    def sweep(self) -> None:
        """See Journal."""
        now = self._clock.now()
        self._record_clock(now)
        self.writer.batch().statements.append(("DELETE FROM tombstones WHERE until < ?", (now,)))
        self._retention.sweep()

    def _record_clock(self, now: float) -> None:
        self._recorded = now
        self.writer.batch().latest["clock"] = Latest(_FACT, schema.fact("clock", now))

    def _drop(self, rows: Sequence[Dropped]) -> None:
        """Delete rollouts. The room they took is given back some time after that."""
        rows = [row for row in rows if row.sequence not in self._dropping]
        if not rows:
            return
        places = array("Q")
        batch = self.writer.batch()
        for row in rows:
            self._dropping[row.sequence] = row.rollout_id
            self._found.pop(row.rollout_id, None)
            if row.positions is None:
                batch.statements.append(("DELETE FROM events WHERE sequence = ?", (row.sequence,)))
            else:
                places.frombytes(row.positions)
        sequences = [row.sequence for row in rows]
        self.forgotten_position = max([self.forgotten_position, *places])
        batch.statements += [
            (_DELETE, (json.dumps(places.tolist()), json.dumps(sequences))),
            ("DELETE FROM rollouts WHERE sequence IN (SELECT value FROM json_each(?))", (json.dumps(sequences),)),
            (_FACT, schema.fact("forgotten_position", self.forgotten_position)),
            (_FACT, schema.fact("last_sequence", self.last_sequence)),
        ]
        batch.after.append(lambda: self._dropped(sequences))
        batch.shrinks = True

    def _dropped(self, sequences: Sequence[int]) -> None:
        """In the writer's thread: they are deleted."""
        for sequence in sequences:
            self._dropping.pop(sequence, None)

    def _report(self, tokens: list[Token], ok: bool) -> None:
        """Something was committed, or cannot be."""
        try:
            self._note(tokens, ok)
        except Exception as error:
            self.writer.broken(error)
        self.on_commit([token for _, _, token in tokens], ok)

    def _note(self, tokens: list[Token], ok: bool) -> None:
        for rollout, position, _ in tokens:
            assert isinstance(rollout, OpenRollout)
            if ok:
                rollout.committed += 1
                self.last_position = position
            else:
                del rollout.positions[rollout.committed :]
                if not rollout.committed:  # it was refused
                    self.secrets.drop(*rollout.key)
            if rollout.committed == len(rollout.positions) and (rollout.settled or not rollout.committed):
                self.open_rollouts.close(rollout)
            if self._found:
                self._found.pop(rollout.key[0], None)

    def _report_problem(self, problem: str) -> None:
        self.problem = problem
        self._dropping.clear()  # what was to be deleted may be there still: it is asked for again
        self.on_problem(problem)

    # What is read.

    @_reads
    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        """See Journal."""
        rollout = self.open_rollouts.get(rollout_id, attempt)
        if rollout is not None:
            positions = rollout.positions[after : min(after + limit, rollout.committed)]
        else:
            positions = self._reader.positions(rollout_id, attempt)[after : after + limit]
        return self._reader.events(rollout_id, attempt, positions)

    @_reads
    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        """See Journal."""
        return self._reader.all_events(owner, after, self.last_position, limit)

    def size(self, rollout_id: str, attempt: int) -> int:
        """See Journal: what a completion takes that waits to be delivered."""
        rollout = self.open_rollouts.get(rollout_id, attempt)
        return 2048 + (rollout.size // 4 if rollout else 0)

    @_reads
    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        """See Journal."""
        found = self._found.get(rollout_id)
        if found is None:
            found = [self._with_credentials(entry) for entry in self._reader.find(rollout_id)]
            small = sum(entry.init.size for entry in found) <= CACHED_BYTES
            if found and small and rollout_id not in self._dropping.values():
                self._found[rollout_id] = found
                if len(self._found) > CACHED:
                    self._found.popitem(last=False)
        return found

    @_reads
    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        """See Journal."""
        return self._reader.find_by_key(owner, idempotency_key)

    async def entries(
        self,
        owner: str,
        after: int,
        limit: int,
        *,
        states: Sequence[RolloutState] = (),
        group_id: str = "",
        unsettled: bool = False,
    ) -> Sequence[JournaledRollout]:
        """See Journal."""

        def read(reader: Reader) -> Sequence[JournaledRollout]:
            return reader.entries(owner, after, limit, states=states, group_id=group_id, unsettled=unsettled)

        return await read_on_thread(self._folder.path, read)

    async def read_apart(self, read: Callable[[Trajectories], R]) -> R:
        """See Journal."""
        return await read_on_thread(self._folder.path, lambda reader: read(reader.trajectory))

    @_reads
    def unsettled(self) -> Sequence[JournaledRollout]:
        """See Journal. From here on they are open again; secrets of anything else are gone."""
        found: list[JournaledRollout] = []
        kept: list[Key] = []
        for row, trail in self._reader.unsettled():
            entry = self._with_credentials(self._reader.entry(row, trail))
            request = entry.init.request
            if entry.damage:
                log.error(
                    "rollout %s attempt %d is damaged in the journal %s: %s; it ends FAILED (server, DATA_LOSS)",
                    request.rollout_id,
                    request.attempt,
                    self._folder.path,
                    entry.damage,
                )
            key = request.rollout_id, request.attempt
            rollout = OpenRollout(
                entry.sequence,
                key,
                entry.owner,
                row.accepted,
                row.accepted_at,
                trail.positions,
                len(trail.positions),
                start_time=entry.start_time,
                end=(row.state, row.start_time, row.end_time, row.ended, row.ended_at),
                ended=entry.end_time is not None,
            )
            self.open_rollouts.grow(self.open_rollouts.add(rollout), trail.size)
            kept.append(key)
            found.append(replace(entry, last_number=len(trail.positions)))
        self.secrets.keep(kept)
        return found

    @_reads
    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        """See Journal."""
        now = self._clock.now()
        return self.reads.execute(
            "SELECT owner, rollout_id, attempt, until - ? FROM tombstones WHERE until > ?", (now, now)
        ).fetchall()

    @_reads
    def version(self, digest: str) -> Mapping[str, str]:
        """See Journal."""
        value = self._reader.fact(_VERSION + digest)
        return dict(json.loads(value)["parts"]) if value else {}

    @property
    def live_size(self) -> int:
        """See Journal: a live rollout has its messages and tokens in memory, and their copies in a sample."""
        return 2 * self.open_rollouts.live_size

    def elapsed(self, entry: JournaledRollout) -> float:
        """See Journal."""
        return max(0.0, self._clock.now() - entry.accepted_at)

    def has_room(self, owner: str) -> bool:
        """See Journal."""
        return self.open_rollouts.has_room(owner)

    def _with_credentials(self, entry: JournaledRollout) -> JournaledRollout:
        """An entry with its secrets, as long as there are any."""
        return entry if entry.settled else replace(entry, init=self.secrets.add_to(entry.init))


_NOTES = {
    events.Started: SqliteJournal._start,
    events.Ended: SqliteJournal._end,
    events.Delivered: SqliteJournal._settle,
}
"""What a rollout's row has to know of its events."""
