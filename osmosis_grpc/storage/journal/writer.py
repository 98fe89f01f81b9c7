"""The thread that commits: whatever waits goes into one transaction, and who waits is told after it.

While one transaction is on its way to the disk, the next one gathers; then it goes, but no
sooner than GATHER after the one before: a commit costs the same for one event and for a hundred.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from osmosis_grpc.storage.journal.schema import ACCEPT, FACT, SEQUENCES, fact
from osmosis_grpc.storage.sqlite.committer import Committer, disk_failed
from osmosis_grpc.storage.sqlite.locked_file import LockedFile
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

COMMIT = job("journal.commit", OnFailure.FAIL_OWNER, "thread")
FLUSH = job("journal.flush", OnFailure.FAIL_OWNER, "timer")
BARRIER = job("journal.barrier", OnFailure.REPORT, "callback")

RETRY = 1.0
"""Seconds between tries to write again, once that has failed."""
GATHER = 0.004
"""Seconds between the starts of transactions, at least."""
MEASURED = 0.05
"""Seconds between two measurements of the file, at most one after each commit."""
IDLE = 0.25
"""Seconds without a commit after which the file shrinks to what is in use."""
VACUUMED = 256
"""Pages that the file gives back at a time: what comes meanwhile waits for it."""
CHUNKS = (1024, 128, 32, 8, 2, 1)
"""Rows of one statement. Python hands its lock over at every statement: the fewer, the better."""
Row = tuple[Any, ...]


class Rollout(Protocol):
    """What a token begins with."""

    sequence: int


Token = tuple[Rollout, int, Any]
"""A rollout, a position, and what whoever appended wants to be told again."""


class Latest(NamedTuple):
    """What is so from now on, whatever was written of the same thing before. `before` is done outside the database."""

    statement: str
    values: Row
    before: Callable[[], None] | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """What is written together, in this order: before() outside the database, rows, statements, latest."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {statement: [] for statement in SEQUENCES})
    """By statements that take many rows."""
    statements: list[tuple[str, Row]] = field(default_factory=list)
    latest: dict[Hashable, Latest] = field(default_factory=dict)
    """By what it is about, a rollout by its sequence. Written with the next batch where the disk failed."""
    tokens: list[Token] = field(default_factory=list)
    """Who is told once it is committed, or cannot be."""
    barriers: list[Callable[[bool], None]] = field(default_factory=list)
    """Told the same in the event loop, after the tokens; and that it cannot be, where the batch before could not."""
    before: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    """Done once it is committed."""
    shrinks: bool = False
    """Whether the file may give room back."""
    done: bool = False
    """Whether those who wait for it know how it went."""


class Writer(Committer[Batch]):
    """Commits a batch at a time, over the only connection that writes.

    `report` gets tokens in the event loop, and whether they are committed; `on_problem` why
    nothing can be written, and an empty text when that is over; `measured` how many bytes of the
    file are in use, before those who wait for the commit.
    """

    def __init__(
        self,
        file: LockedFile,
        report: Callable[[list[Token], bool], None],
        on_problem: Callable[[str], None],
        measured: Callable[[int], None],
        supervisor: Supervisor,
    ) -> None:
        self._report = report
        self._report_problem = on_problem
        self._measured = measured
        self._measured_at = 0.0
        self._unmeasured = True
        """Whether something was committed since the last measurement."""
        (self._page,) = file.database.execute("PRAGMA page_size").fetchone()
        self._shrinking = True
        """Whether the file may have free pages, or a WAL that is longer than it need be."""
        self._idle = False
        self._batch = Batch()
        self._busy = False
        self._flushed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._broken: set[int] = set()
        """Rollouts of which an event could not be committed: none that follows may be, either."""
        self._owed: dict[Hashable, Latest] = {}
        """What the disk did not take, and is written again."""
        self.commits = 0
        """Transactions that were committed since the start."""
        self.commit_seconds = 0.0
        """The time that they took."""
        super().__init__(file, COMMIT, supervisor)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be committed and nothing is on its way to the disk."""
        return not self._busy and self._timer is None

    def batch(self) -> Batch:
        """What is written next, to be added to at once."""
        if self.idle:
            self._arm()
        return self._batch

    def close(self) -> None:
        """Write what waits, and end."""
        if self._timer is not None:
            self._timer.cancel()
        self._put(self._batch)
        self._end()

    def broken(self, error: BaseException) -> None:
        """Commit nothing more: what is to be written is not as it should be. Those who wait for it get the error."""
        self._supervisor.failed(COMMIT, error, self._died)

    def _arm(self) -> None:
        pause = self._flushed + GATHER - self._loop.time()
        self._timer = self._supervisor.call_later(FLUSH, pause, self.flush, report=self._died)

    def flush(self) -> None:
        """Hand the batch to the thread now."""
        self._timer = None
        self._busy = True
        self._flushed = self._loop.time()
        batch, self._batch = self._batch, Batch()
        self._put(batch)

    def _fail(self, items: Sequence[Batch], error: BaseException) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._batch = self._batch, Batch()
        self._report_problem(f"its thread has ended: {error!r}")
        for batch in (*items, waiting):
            self._written(batch, False)

    def _written(self, batch: Batch, ok: bool) -> None:
        """In the event loop: a batch is done with."""
        if batch.done:
            return
        batch.done = True
        self._busy = False
        waiting = self._batch
        if not ok:
            batch.barriers += waiting.barriers
            waiting.barriers.clear()
        if self._timer is None and (waiting.tokens or waiting.statements or waiting.latest or waiting.barriers):
            self._arm()
        if batch.tokens:
            self._report(batch.tokens, ok)
        for then in batch.barriers:
            self._supervisor.call(BARRIER, then, ok, report=partial(_refuse, then))

    def _patience(self) -> float | None:
        if self.problem:
            return RETRY
        if self._unmeasured:
            return MEASURED
        if self._shrinking:
            return 0.0 if self._idle else IDLE
        return None

    def _commit(self, items: Sequence[Batch]) -> None:
        for batch in items:
            self._write(batch)
        if self.problem and not items:  # can it be written again?
            self._write(Batch(statements=[(FACT, fact("tried", int(time.time())))]))
        if self.problem:
            return
        if self._unmeasured and (not items or time.monotonic() >= self._measured_at + MEASURED):
            self._measure()
        elif self._shrinking:
            self._idle = not items
            self._shrink()

    def _write(self, batch: Batch) -> None:
        if self._broken:
            self._leave_out(batch)
        latest = self._owed | batch.latest if self._owed else batch.latest
        problem = ""
        began = time.perf_counter()
        try:
            for call in batch.before:
                call()
            for _, _, before in latest.values():
                if before is not None:
                    before()
            with self._transaction() as database:
                for statement, rows in batch.rows.items():
                    execute(database, statement, rows)
                for statement, values in batch.statements:
                    database.execute(statement, values)
                for statement, values, _ in latest.values():
                    database.execute(statement, values)
            self.commits += 1
            self.commit_seconds += time.perf_counter() - began
            self._owed = {}
        except Exception as error:  # whatever it was, whoever waits has to be told
            problem = str(error) or type(error).__name__
            self._broken.update(rollout.sequence for rollout, _, _ in batch.tokens)
            refused = {row[0] for row in batch.rows[ACCEPT]}
            self._owed = {about: it for about, it in latest.items() if about not in refused and disk_failed(error)}
        wrote = batch.tokens or batch.statements or latest  # an empty transaction succeeds on a full disk, too
        if (problem or wrote) and self._set_problem(problem):
            self._on_loop(self._report_problem, problem)
        self._unmeasured = not problem
        if self._unmeasured and batch.shrinks:
            self._measure()
        self._on_loop(self._written, batch, not problem)
        if problem:
            return
        self._shrinking = self._shrinking or batch.shrinks
        try:
            for call in batch.after:
                call()
        except Exception:  # it is committed all the same
            log.exception("the journal %s: what follows a commit failed", self._file.path)

    def _pages(self) -> tuple[int, int]:
        """How many pages of the file are in use, and how many are free."""
        (pages,), (free,) = (self._database.execute(f"PRAGMA {name}_count").fetchone() for name in ("page", "freelist"))
        return pages - free, free

    def _measure(self) -> None:
        self._measured_at, self._unmeasured = time.monotonic(), False
        with contextlib.suppress(sqlite3.Error):
            self._on_loop(self._measured, self._pages()[0] * self._page)

    def _shrink(self) -> None:
        """Give back some free pages: all in the end once nothing comes, and else what exceeds a quarter of the file.

        Rollouts that come take free pages again, and that costs less than to give them back.
        """
        try:
            used, free = self._pages()
            if free > (0 if self._idle else max(VACUUMED, used // 4)):
                # execute() steps a statement once, and each step of this one frees one page.
                self._database.executescript(f"PRAGMA incremental_vacuum({VACUUMED})")
            elif self._idle:
                self._shrinking, self._idle = self._truncate(), False
        except sqlite3.Error:  # another sweep tries it again
            self._shrinking = False

    def _truncate(self) -> bool:
        """Empty the WAL. Returns whether a reader still needs it."""
        self._database.execute("PRAGMA busy_timeout = 0")  # nothing that is to be committed waits for a reader
        try:
            (busy, _, _) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._database.execute("PRAGMA busy_timeout = 5000")
        return bool(busy)

    def _leave_out(self, batch: Batch) -> None:
        """Write nothing of rollouts that lack an event."""
        late = [token for token in batch.tokens if token[0].sequence in self._broken]
        if late:
            batch.tokens = [token for token in batch.tokens if token[0].sequence not in self._broken]
            for statement, rows in batch.rows.items():
                place = SEQUENCES[statement]
                batch.rows[statement] = [row for row in rows if row[place] not in self._broken]
            self._on_loop(self._report, late, False)


def _refuse(then: Callable[[bool], None], error: BaseException) -> None:
    """The one who waits at a barrier is not told that it holds."""
    then(False)


def execute(database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Once for many rows."""
    if not rows:
        return
    marks = f"({', '.join('?' * len(rows[0]))})"
    start = 0
    for size in CHUNKS:
        while len(rows) - start >= size:
            values = [value for row in rows[start : start + size] for value in row]
            database.execute(statement.format(rows=", ".join([marks] * size)), values)
            start += size
