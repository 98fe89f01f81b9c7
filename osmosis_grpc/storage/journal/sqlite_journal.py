"""The Journal in SQLite. An append becomes rows of the next commit. Settled rollouts are read from the file.

The table of events is ordered by position and contains each event in wire form. The row of an ended rollout contains
the positions of the rollout's events, so the table of events needs no second index. Memory holds the positions of
unsettled rollouts only.

The journal's clock measures how long a rollout has run, and how long the journal has kept a rollout. The clock is
monotonic, and it runs only while a process has the journal open. A jump of the wall clock does not make a rollout
older. Time without a server does not make a rollout older, either. The process writes the clock's time to the journal,
and the next process continues from this time.
"""

import asyncio
import json
import sqlite3
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from osmosis_grpc.engine.journal_port import Figures
from osmosis_grpc.protocol.types import JournaledRollout, OutcomeStatus, TrajectoryEvent, events
from osmosis_grpc.protocol.wire.event import kind_to_bytes
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.credentials import Secrets, has_secrets
from osmosis_grpc.storage.journal.open_rollouts import End, Key, OpenRollout
from osmosis_grpc.storage.journal.prepare import prepare
from osmosis_grpc.storage.journal.retention import Retention, deletion
from osmosis_grpc.storage.journal.rows import EVENT_BYTES, Dropped, accept_row, accepted_columns, end_row, settle_row
from osmosis_grpc.storage.journal.stored_rollouts import VERSION, StoredRollouts, read_on_thread
from osmosis_grpc.storage.journal.writer import Batch, Latest, Row, Token, Writer
from osmosis_grpc.storage.sqlite.database import LockedFile, connect, explained
from osmosis_grpc.storage.sqlite.file_schema import event_sum, with_sum
from osmosis_grpc.storage.state_folders import RolloutFolders
from osmosis_grpc.supervise import OnFailure, Supervisor, job

SWEEP_FOLDERS = job("journal.sweep_folders", OnFailure.RESTART)
CLOCK_INTERVAL = 1.0
"""When the journal's time was written this many seconds ago, the next event writes the time again."""
VERSIONS = 64
"""The journal stores at most this many versions of agents."""
_OLD_VERSIONS = """DELETE FROM facts WHERE name IN (SELECT name FROM facts WHERE name LIKE 'agent version %'
    ORDER BY json_extract(value, '$.time') DESC LIMIT -1 OFFSET ?)"""


class SqliteJournal(StoredRollouts):
    """Opens or creates the journal in a folder. Raises JournalError. Belongs to the running event loop."""

    durable = True

    def __init__(
        self,
        folder: Path,
        *,
        record_ttl: float = 3600.0,
        budget: int = 10 * 1024**3,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor = supervisor or Supervisor("the journal")
        self._budget = budget
        with explained(schema.JOURNAL, folder, "stop it"), ExitStack() as stack:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = LockedFile(folder / schema.FILE, schema.JOURNAL)
            stack.callback(file.close)
            created = prepare(file.database, file.path, supervisor.system)
            reads = connect(file.path)
            stack.callback(reads.close)
            reads.execute("PRAGMA query_only = 1")
            super().__init__(file.path, reads, Secrets(folder), budget, supervisor.system)
            self._restore(created)
            self._folders = RolloutFolders(folder, budget, self.last_sequence)
            self._folder_sweep: asyncio.Task[None] | None = None
            self._loop = asyncio.get_running_loop()
            file.database.execute(schema.FACT, schema.fact("closed", 0))
            self.writer = Writer(
                file, self._report, self._report_problem, lambda used: self._retention.measured(used), supervisor
            )
            self._retention = Retention(
                self._reader,
                self.writer,
                self.open_rollouts,
                ttl=record_ttl,
                budget=budget,
                now=self._now,
                on_drop=self._on_drop,
            )
            self._release = stack.pop_all().close

    def _restore(self, created: bool) -> None:
        """Read the counters, the clock, and how the previous process ended."""
        fact = self._reader.fact
        (position,) = self.reads.execute("SELECT max(position) FROM events").fetchone()
        (sequence,) = self.reads.execute("SELECT max(sequence) FROM rollouts").fetchone()
        self.forgotten_position = int(fact("forgotten_position") or 0)
        self._deleted_position = int(fact("deleted_position") or 0)
        """The highest position of a rollout that settle_unrecorded() has deleted."""
        self.last_position = self._written = max(position or 0, self.forgotten_position, self._deleted_position)
        self.last_sequence = max(sequence or 0, int(fact("last_sequence") or 0))
        self.crashed = not (created or fact("closed"))

    def close(self) -> None:
        if self._folder_sweep is not None:
            self._folder_sweep.cancel()
        self._retention.close()
        self._write_clock(self._now())
        self.writer.batch().latest["closed"] = Latest(schema.FACT, schema.fact("closed", 1))
        self.writer.close()
        self._release()

    def figures(self) -> Figures:
        size = sum(file.stat().st_size for file in (self.path, Path(f"{self.path}-wal")) if file.exists())
        return Figures(size, self._budget, self.writer.commits, self.writer.commit_seconds)

    # Writing.

    def append(self, event: TrajectoryEvent, size: int, token: Any, entry: JournaledRollout | None = None) -> bool:
        number, body = kind_to_bytes(event.kind)
        try:
            self._append(event, number, body, token, entry)
        except Exception as error:  # rows and positions perhaps disagree, so nothing more is committed
            self.writer.broken(error)
            self._loop.call_soon(self.on_commit, [token], False)
        return False

    def _append(
        self, event: TrajectoryEvent, number: int, body: bytes, token: Any, entry: JournaledRollout | None
    ) -> None:
        self._written = position = self._written + 1
        key = event.rollout_id, event.attempt
        batch = self.writer.batch(_WAITS.get(type(event.kind), 0.0))
        now = self._now()
        if entry is not None:
            rollout = OpenRollout(entry.sequence, key, entry.owner, position, now)
            self.open_rollouts.by_key[key] = rollout
            self.last_sequence = max(self.last_sequence, entry.sequence)
            batch.rows[schema.ACCEPT].append(accept_row(entry, position, now))
            if has_secrets(entry.init):
                batch.before.append(lambda: self.secrets.put(entry.init))
        else:
            rollout = self.open_rollouts.by_key.get(key) or self._reopen(key)
        rollout.positions.append(position)
        self.open_rollouts.grow(rollout, len(body) + EVENT_BYTES)
        if now >= self._clock_written + CLOCK_INTERVAL:
            self._write_clock(now)
        row = position, rollout.sequence, event.event_number, event.time, number, body
        batch.rows[schema.EVENT].append((*row, event_sum(*row)))
        batch.tokens.append((rollout, position, token))
        update = _UPDATES.get(type(event.kind))
        if update is not None:
            update(self, batch, rollout, event)

    def _start(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        rollout.start_time = event.time

    def _end(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        assert isinstance(event.kind, events.Ended)
        outcome = event.kind.outcome
        rollout.settled = (outcome.status, outcome.finish_reason) == (OutcomeStatus.CANCELLED, "superseded")
        rollout.settled_at = rollout.positions[-1] if rollout.settled else 0
        self.open_rollouts.end(rollout)
        rollout.end = End.of(
            outcome,
            start_time=rollout.start_time,
            end_time=event.time,
            ended=rollout.positions[-1],
            ended_at=self._now(),
        )
        batch.rows[schema.END].append(end_row(rollout, event.event_number))
        if rollout.settled:
            batch.after.append(lambda: self.secrets.drop(*rollout.key))

    def _settle(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        rollout.settled, rollout.settled_at = True, rollout.positions[-1]
        batch.rows[schema.ANNOTATE] = _other_rows(batch, rollout)
        batch.rows[schema.SETTLE].append(settle_row(rollout, event.event_number))
        batch.after.append(lambda: self.secrets.drop(*rollout.key))  # runs when the acknowledgement is on disk

    def _annotate(self, batch: Batch, rollout: OpenRollout, event: TrajectoryEvent) -> None:
        """Write the row of an ended rollout again, with the position of the new event."""
        if rollout.ended:
            rows = _other_rows(batch, rollout)
            batch.rows[schema.ANNOTATE] = [*rows, end_row(rollout, event.event_number)]

    def _reopen(self, key: Key) -> OpenRollout:
        """Open a settled rollout for an annotation. The rollout closes with the commit. Raises Damaged."""
        row = self._reader.row(*key)
        if row is None or row.positions is None or self._is_dropping(key[0]):
            raise schema.Damaged(f"rollout {key[0]} is not in the journal")
        positions = array("Q", row.positions)
        rollout = self.open_rollouts.by_key[key] = OpenRollout(
            row.sequence,
            key,
            row.owner,
            row.accepted,
            row.accepted_at,
            positions,
            len(positions),
            start_time=row.start_time,
            end=row.end,
            ended=True,
            settled=True,
        )
        self.open_rollouts.grow(rollout, row.size)
        return rollout

    def settle_unrecorded(self, rollout_id: str, attempt: int) -> None:
        rollout = self.open_rollouts.by_key.get((rollout_id, attempt))
        if rollout is None or rollout.settled:
            return
        rollout.settled = True
        self.open_rollouts.close(rollout)
        self._found.pop(rollout_id, None)

        def drop() -> None:
            self.secrets.drop(rollout_id, attempt)

        if rollout.end.ended in rollout.positions:
            row = end_row(rollout, len(rollout.positions))
            written = [(schema.END.format(rows=f"({', '.join('?' * len(row))})"), row)]
        else:
            written, position = deletion(
                [Dropped(rollout.sequence, rollout_id, attempt, rollout.positions.tobytes(), rollout.size)]
            )
            self._deleted_position = max(self._deleted_position, position)
            written += [
                (schema.FACT, schema.fact("deleted_position", self._deleted_position)),
                (schema.FACT, schema.fact("last_sequence", self.last_sequence)),
            ]
        latest = self.writer.batch().latest
        for number, (statement, values) in enumerate(written):
            latest[rollout.sequence, number] = Latest(statement, values, after=drop if number == 0 else None)

    def repoint(self, entry: JournaledRollout) -> None:
        init = entry.init
        rollout = self.open_rollouts.by_key.get((init.request.rollout_id, init.request.attempt))
        if rollout is None or rollout.settled:
            return
        columns = accepted_columns(entry, rollout.accepted, rollout.accepted_at)
        values = entry.attachment_id, columns[schema.CALLBACK], columns[-1], entry.sequence
        self.writer.batch().latest[entry.sequence] = Latest(
            "UPDATE rollouts SET attachment_id = ?, callback = ?, accept_sum = ? WHERE sequence = ?",
            values,
            lambda: self.secrets.put(init),
        )

    def count_deaths(self, entry: JournaledRollout, deaths: int) -> None:
        row = deaths, schema.deaths_sum(entry.sequence, deaths), entry.sequence
        self.writer.batch().statements.append(
            ("UPDATE rollouts SET deaths = ?, deaths_sum = ? WHERE sequence = ?", row)
        )

    def add_tombstone(self, owner: str, rollout_id: str, attempt: int, seconds: float) -> None:
        until = self._now() + seconds if seconds > 0 else 0.0
        row = with_sum(b"tombstones.checksum", (owner, rollout_id, attempt, until))
        self.writer.batch().latest[owner, rollout_id] = Latest(
            "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?, ?)", row
        )

    def keep_version(self, digest: str, parts: Mapping[str, str]) -> None:
        value = json.dumps({"time": self._system.time(), "parts": dict(parts)})
        fact = schema.fact(VERSION + digest, value)
        self.writer.batch().statements += [(schema.FACT, fact), (_OLD_VERSIONS, (VERSIONS,))]

    def barrier(self, then: Callable[[bool], None]) -> None:
        self.writer.batch().barriers.append(then)

    def forget(self, rollout_id: str, attempt: int) -> None:
        rollout = self.open_rollouts.by_key.get((rollout_id, attempt))
        if rollout is not None:
            self.open_rollouts.close(rollout)
        with suppress(sqlite3.Error):
            rows = self.reads.execute(
                "SELECT sequence, rollout_id, attempt, positions, size FROM rollouts "
                "WHERE rollout_id = ? AND attempt = ?",
                (rollout_id, attempt),
            ).fetchall()
            found = [Dropped(*row) for row in rows]
            if rollout is not None:  # it has also the positions of events that are not committed yet
                found = [row._replace(positions=rollout.positions.tobytes()) for row in found]
            self._retention.drop(found)
            if rows:
                self.secrets.drop(rollout_id, attempt)

    def sweep(self) -> None:
        now = self._now()
        self._write_clock(now)
        self.writer.batch().statements.append(("DELETE FROM tombstones WHERE until < ?", (now,)))
        self._retention.sweep()
        if self._folders.exist and (self._folder_sweep is None or self._folder_sweep.done()):
            self._folder_sweep = self._supervisor.start(SWEEP_FOLDERS, self._sweep_folders)

    async def _sweep_folders(self) -> None:
        await read_on_thread(self._system, self.path, lambda reader: self._folders.sweep(reader.known_sequences))

    def rollout_folder(self, sequence: int) -> Path:
        return self._folders.path(sequence)

    def _is_dropping(self, rollout_id: str) -> bool:
        return self._retention.is_dropping(rollout_id)

    def _write_clock(self, now: float) -> None:
        self._clock_written = now
        self.writer.batch().latest["clock"] = Latest(schema.FACT, schema.fact("clock", now))

    def _on_drop(self, rollout_ids: Sequence[str], position: int) -> None:
        """Record in the transaction of a deletion what the deleted rows no longer tell."""
        self.forgotten_position = max(self.forgotten_position, position)
        for rollout_id in rollout_ids:
            self._found.pop(rollout_id, None)
        self.writer.batch().statements += [
            (schema.FACT, schema.fact("forgotten_position", self.forgotten_position)),
            (schema.FACT, schema.fact("last_sequence", self.last_sequence)),
        ]

    def _report(self, tokens: list[Token], ok: bool) -> None:
        """Note and report whether events are committed. Called on the event loop.

        `ok` is False if these events cannot be committed.
        """
        try:
            self._note(tokens, ok)
        except Exception as error:
            self.writer.broken(error)
        self.on_commit([token for _, _, token in tokens], ok)

    def _note(self, tokens: list[Token], ok: bool) -> None:
        for rollout, position, _ in tokens:
            if ok:
                rollout.committed += 1
                self.last_position = position
            else:
                del rollout.positions[rollout.committed :]
                if rollout.settled_at and rollout.settled_at not in rollout.positions:
                    rollout.settled = False
                if not rollout.committed:  # the acceptance of the rollout was not committed
                    self.secrets.drop(*rollout.key)
            if rollout.committed == len(rollout.positions) and (rollout.settled or not rollout.committed):
                self.open_rollouts.close(rollout)
            if self._found:
                self._found.pop(rollout.key[0], None)

    def _report_problem(self, problem: str) -> None:
        self.problem = problem
        self._found.clear()  # what the journal owes is written with the first transaction that works again
        self._retention.failed()
        self.on_problem(problem)


def _other_rows(batch: Batch, rollout: OpenRollout) -> list[Row]:
    """Return the rows of schema.ANNOTATE without the row of this rollout, which a newer row replaces."""
    return [row for row in batch.rows[schema.ANNOTATE] if row[0] != rollout.sequence]


_WAITS = dict.fromkeys((events.ChatRequested, events.ChatAnswered, events.ToolCalled, events.ToolReturned), 0.02)
"""The seconds for which events wait for others. Nobody waits for these: after a crash, their chats are asked again and
the trainer has the replies. A commit for each of them would cost as much as the chat itself."""
_UPDATES = {
    events.Started: SqliteJournal._start,
    events.Ended: SqliteJournal._end,
    events.Delivered: SqliteJournal._settle,
    events.Annotated: SqliteJournal._annotate,
}
