"""The journal's thread: commits everything that waits in one transaction, and shrinks the file.

While one transaction is on its way to the disk, the next batch grows. It follows as soon as the disk is free, but no
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
from typing import Any, NamedTuple

from osmosis_grpc.storage.journal.open_rollouts import OpenRollout
from osmosis_grpc.storage.journal.schema import ACCEPT, FACT, SEQUENCES, fact
from osmosis_grpc.storage.sqlite.committer import Committer, disk_failed
from osmosis_grpc.storage.sqlite.database import LockedFile
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

COMMIT = job("journal.commit", OnFailure.FAIL_OWNER, "thread")
FLUSH = job("journal.flush", OnFailure.FAIL_OWNER, "timer")
BARRIER = job("journal.barrier", OnFailure.REPORT, "callback")

RETRY = 1.0
"""Seconds between tries to write, while writing fails."""
GATHER = 0.004
"""The least seconds between the starts of two transactions."""
MEASURE_INTERVAL = 0.05
"""The least seconds between two measurements of the file."""
IDLE = 0.25
"""Seconds without a commit after which all free pages are released."""
VACUUM_PAGES = 256
"""Pages released at a time: new batches wait for it."""
CHUNKS = (1024, 128, 32, 8, 2, 1)
"""Rows of one statement. Python releases its lock at each statement, so a few large ones are faster."""
Row = tuple[Any, ...]
Token = tuple[OpenRollout, int, Any]
"""One queued append: its rollout, its position, and the token for `on_commit`."""


class Latest(NamedTuple):
    """A value that replaces earlier ones: a statement, and what to call before the transaction that contains it."""

    statement: str
    values: Row
    before: Callable[[], None] | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """What one transaction writes: rows, statements and latest, in this order."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {statement: [] for statement in SEQUENCES})
    """Values of the statements that take many rows."""
    statements: list[tuple[str, Row]] = field(default_factory=list)
    latest: dict[Hashable, Latest] = field(default_factory=dict)
    """By what they are about, a rollout by its sequence. If the disk fails, they are written with the next batch."""
    tokens: list[Token] = field(default_factory=list)
    """Reported after the commit, or when the batch cannot be committed."""
    barriers: list[Callable[[bool], None]] = field(default_factory=list)
    """Called on the event loop after the tokens; with False also if the batch before could not be committed."""
    before: list[Callable[[], None]] = field(default_factory=list)
    """Called on the thread before the transaction."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Called on the thread after the commit."""
    shrinks: bool = False
    done: bool = False
    """Whether its tokens and barriers were called."""


class Writer(Committer[Batch]):
    """Commits one batch at a time, over the only connection that writes.

    On the event loop it calls `report` with tokens and whether they are committed, `on_problem` with the reason why
    writing fails, or with an empty text when it works again, and, before the report of a commit, `measured` with the
    bytes of the file that are in use.
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
        """Whether the file may have free pages, or a write-ahead log that can be emptied."""
        self._idle = False
        self._batch = Batch()
        self._busy = False
        self._flushed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._broken: set[int] = set()
        """Sequences of rollouts with an event that could not be committed: no later event of them is written."""
        self._owed: dict[Hashable, Latest] = {}
        """What a failed transaction left for the next one."""
        self.commits = 0
        self.commit_seconds = 0.0
        """The time of all commits."""
        super().__init__(file, COMMIT, supervisor)

    @property
    def idle(self) -> bool:
        """Whether no batch waits and no transaction runs."""
        return not self._busy and self._timer is None

    def batch(self) -> Batch:
        """Return the next batch. The caller adds to it at once."""
        if self.idle:
            self._arm()
        return self._batch

    def close(self) -> None:
        """Commit the last batch and end the thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._put(self._batch)
        self._end()

    def broken(self, error: BaseException) -> None:
        """Commit nothing more, because the next batch is inconsistent. Its tokens and barriers get False."""
        self._supervisor.failed(COMMIT, error, self._died)

    def _arm(self) -> None:
        pause = self._flushed + GATHER - self._loop.time()
        self._timer = self._supervisor.call_later(FLUSH, pause, self.flush, report=self._died)

    def flush(self) -> None:
        """Give the batch to the thread now."""
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
            self._finish(batch, False)

    def _finish(self, batch: Batch, ok: bool) -> None:
        """Call the tokens and barriers of a batch, on the event loop."""
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

    def _timeout(self) -> float | None:
        if self.problem:
            return RETRY
        if self._unmeasured:
            return MEASURE_INTERVAL
        if self._shrinking:
            return 0.0 if self._idle else IDLE
        return None

    def _commit(self, items: Sequence[Batch]) -> None:
        for batch in items:
            self._write(batch)
        if self.problem and not items:  # does writing work again?
            self._write(Batch(statements=[(FACT, fact("tried", int(time.time())))], done=True))
        if self.problem:
            return
        if self._unmeasured and (not items or time.monotonic() >= self._measured_at + MEASURE_INTERVAL):
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
        except Exception as error:  # of any kind: the batch has to be reported
            problem = str(error) or type(error).__name__
            self._broken.update(rollout.sequence for rollout, _, _ in batch.tokens)
            refused = {row[0] for row in batch.rows[ACCEPT]}
            self._owed = {about: it for about, it in latest.items() if about not in refused and disk_failed(error)}
        wrote = batch.tokens or batch.statements or latest  # an empty transaction also succeeds on a full disk
        if (problem or wrote) and self._set_problem(problem):
            self._on_loop(self._report_problem, problem)
        self._unmeasured = not problem
        if self._unmeasured and batch.shrinks:
            self._measure()
        self._on_loop(self._finish, batch, not problem)
        if problem:
            return
        self._shrinking = self._shrinking or batch.shrinks
        try:
            for call in batch.after:
                call()
        except Exception:  # the batch is committed all the same
            log.exception("the journal %s: a step after a commit failed", self._file.path)

    def _pages(self) -> tuple[int, int]:
        """Return how many pages of the file are in use, and how many are free."""
        (pages,), (free,) = (self._database.execute(f"PRAGMA {name}_count").fetchone() for name in ("page", "freelist"))
        return pages - free, free

    def _measure(self) -> None:
        self._measured_at, self._unmeasured = time.monotonic(), False
        with contextlib.suppress(sqlite3.Error):
            self._on_loop(self._measured, self._pages()[0] * self._page)

    def _shrink(self) -> None:
        """Release some free pages: while idle until none is left, else those beyond a quarter of the pages in use.

        New rollouts use free pages again, which costs less than to release them.
        """
        try:
            used, free = self._pages()
            if free > (0 if self._idle else max(VACUUM_PAGES, used // 4)):
                # execute() steps a statement once, and each step of this one releases one page.
                self._database.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
            elif self._idle:
                self._shrinking, self._idle = self._truncate(), False
        except sqlite3.Error:  # the next sweep tries again
            self._shrinking = False

    def _truncate(self) -> bool:
        """Empty the write-ahead log. Returns whether a reader still needs it."""
        self._database.execute("PRAGMA busy_timeout = 0")  # no batch waits for a reader
        try:
            (busy, _, _) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._database.execute("PRAGMA busy_timeout = 5000")
        return bool(busy)

    def _leave_out(self, batch: Batch) -> None:
        """Remove the rollouts that lack an event from a batch, and report their tokens."""
        late = [token for token in batch.tokens if token[0].sequence in self._broken]
        if late:
            batch.tokens = [token for token in batch.tokens if token[0].sequence not in self._broken]
            for statement, rows in batch.rows.items():
                column = SEQUENCES[statement]
                batch.rows[statement] = [row for row in rows if row[column] not in self._broken]
            self._on_loop(self._report, late, False)


def _refuse(then: Callable[[bool], None], error: BaseException) -> None:
    """Call a barrier with False after its first call has raised."""
    then(False)


def execute(database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Execute a statement for all rows, with as few calls as possible."""
    if not rows:
        return
    marks = f"({', '.join('?' * len(rows[0]))})"
    start = 0
    for size in CHUNKS:
        while len(rows) - start >= size:
            values = [value for row in rows[start : start + size] for value in row]
            database.execute(statement.format(rows=", ".join([marks] * size)), values)
            start += size
