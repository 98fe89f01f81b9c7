"""The journal's thread. It commits all waiting writes in one transaction, and shrinks the file."""

import contextlib
import logging
import sqlite3
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
"""The seconds between two tests whether writing works again, while writing fails and no batch comes."""
MEASURE_INTERVAL = 0.05
"""The least seconds between two measurements of the file, except after a batch that deletes rollouts."""
IDLE = 0.25
"""The seconds without a commit after which the thread releases all free pages."""
VACUUM_PAGES = 256
"""The most free pages that the thread releases in one step, because new batches wait for its end."""
REPORTED = 4
"""The most tokens that are reported in one call. A token can begin or end a rollout, which takes up to 0.5 ms."""
CHUNKS = (1024, 128, 32, 8, 2, 1)
"""The possible numbers of rows in one statement.

Python releases the GIL at each statement, so a few large statements are faster than many small statements.
"""
Row = tuple[Any, ...]
Token = tuple[OpenRollout, int, Any]
"""One event that waits for its commit: the rollout, the event's position, and a value from the caller.

The writer does not use the value. Journal.on_commit gets it.
"""


class Latest(NamedTuple):
    """An SQL statement that replaces an earlier one in the batch if both have the same key in Batch.latest.

    The thread first calls the function `before`. Then it begins the transaction that contains the statement. It calls
    the function `after` after the commit.
    """

    statement: str
    values: Row
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """The content of one transaction. The transaction writes `rows`, then `statements`, then `latest`."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {statement: [] for statement in SEQUENCES})
    """The rows to write, by statement. Each of these statements takes many rows."""
    statements: list[tuple[str, Row]] = field(default_factory=list)
    latest: dict[Hashable, Latest] = field(default_factory=dict)
    """The statements by their key. A key is, for example, a rollout's `sequence`: its number in order of acceptance.

    If the disk fails, the next transaction writes these statements.
    """
    tokens: list[Token] = field(default_factory=list)
    """The appends in this batch. The writer reports them after the commit, or when the batch cannot be committed."""
    barriers: list[Callable[[bool], None]] = field(default_factory=list)
    """Functions to call on the event loop after the report of the tokens.

    They get True after the commit. They get False if this batch, or the batch before, cannot be committed.
    """
    before: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call on the thread before the transaction."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call on the thread after the commit."""
    shrinks: bool = False
    done: bool = False
    """Whether the tokens were reported and the barriers were called."""

    def __len__(self) -> int:
        return len(self.tokens) + len(self.statements) + len(self.latest) + len(self.barriers)


class Writer(Committer[Batch]):
    """Commits one batch at a time, over the only connection that writes to the file.

    The writer calls three functions on the event loop. `report` gets tokens, and whether they are committed.
    `on_problem` gets the reason why writing fails, and an empty text when writing works again. `measured` gets the
    number of bytes that are in use in the file. After a batch that deletes rollouts, the writer calls `measured` before
    `report`.
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
        """Whether the file may have free pages to release, or a write-ahead log to empty."""
        self._idle = False
        self._broken: set[int] = set()
        """The `sequence` numbers of rollouts with an event that could not be committed.

        Later events of these rollouts are not written.
        """
        self._owed: dict[Hashable, Latest] = {}
        """The `latest` statements that were not written, because the disk failed. The next transaction writes them."""
        self.commits = 0
        self.commit_seconds = 0.0
        """The time that all commits together took."""
        self._system = supervisor.system
        self._monotonic = supervisor.system.monotonic
        super().__init__(file, COMMIT, FLUSH, supervisor)

    def _new(self) -> Batch:
        return Batch()

    def close(self) -> None:
        """Commit the last batch and end the thread."""
        self.flush()
        self._end()

    def broken(self, error: BaseException) -> None:
        """Commit no further batch, because `error` has left the next batch inconsistent.

        The tokens and barriers of the next batch get False.
        """
        self._supervisor.failed(COMMIT, error, self.died)

    def _fail(self, items: Sequence[Batch], error: BaseException) -> None:
        self._report_problem(f"its thread has ended: {error!r}")
        for batch in items:
            self._finish(batch, False)

    def _finish(self, batch: Batch, ok: bool) -> None:
        """Report the tokens of a batch and call its barriers, on the event loop."""
        if batch.done:
            return
        batch.done = True
        if not ok:
            batch.barriers += self._batch.barriers
            self._batch.barriers.clear()
        self._next()
        self._tell(batch.tokens, ok)
        self._supervisor.later(self._called, self._pass, (batch, ok))

    def _tell(self, tokens: Sequence[Token], ok: bool) -> None:
        for start in range(0, len(tokens), REPORTED):
            self._supervisor.later(self._called, self._report, (tokens[start : start + REPORTED], ok))

    def _pass(self, batch: Batch, ok: bool) -> None:
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
        if self.problem and not items:  # test whether writing works again
            self._write(Batch(statements=[(FACT, fact("tried", int(self._system.time())))], done=True))
        if self.problem:
            return
        if self._unmeasured and (not items or self._monotonic() >= self._measured_at + MEASURE_INTERVAL):
            self._measure()
        elif self._shrinking:
            self._idle = not items
            self._shrink()

    def _write(self, batch: Batch) -> None:
        if self._broken:
            self._leave_out(batch)
        latest = self._owed | batch.latest if self._owed else batch.latest
        problem = ""
        began = self._monotonic()
        try:
            for call in batch.before:
                call()
            for each in latest.values():
                if each.before is not None:
                    each.before()
            with self._transaction() as database:
                for statement, rows in batch.rows.items():
                    execute(database, statement, rows)
                for statement, values in batch.statements:
                    database.execute(statement, values)
                for each in latest.values():
                    database.execute(each.statement, each.values)
            self.commits += 1
            self.commit_seconds += self._monotonic() - began
            self._owed = {}
        except Exception as error:  # every error is caught, because the batch must be reported
            problem = str(error) or type(error).__name__
            self._broken.update(rollout.sequence for rollout, _, _ in batch.tokens)
            refused = {row[0] for row in batch.rows[ACCEPT]}
            self._owed = {about: it for about, it in latest.items() if about not in refused and disk_failed(error)}
        # An empty transaction succeeds even on a full disk, so its success does not clear the problem.
        wrote = batch.tokens or batch.statements or latest
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
            for each in latest.values():
                if each.after is not None:
                    each.after()
        except Exception:  # the batch is already committed, so the error is only logged
            log.exception("the journal %s: a step after a commit failed", self.file.path)

    def _pages(self) -> tuple[int, int]:
        (pages,), (free,) = (self._database.execute(f"PRAGMA {name}_count").fetchone() for name in ("page", "freelist"))
        return pages - free, free

    def _measure(self) -> None:
        self._measured_at, self._unmeasured = self._monotonic(), False
        with contextlib.suppress(sqlite3.Error):
            self._on_loop(self._measured, self._pages()[0] * self._page)

    def _shrink(self) -> None:
        """Release up to VACUUM_PAGES free pages.

        While the thread is idle, it repeats the call until no free page is left, and then empties the write-ahead log.
        While it is busy, a call releases pages only if there are more than VACUUM_PAGES free ones, and more than a
        quarter of the pages in use. Otherwise new rollouts reuse the free pages, which costs less than a release.
        """
        try:
            used, free = self._pages()
            if free > (0 if self._idle else max(VACUUM_PAGES, used // 4)):
                # execute() would run only the first step of this PRAGMA, which releases one page. executescript() runs
                # all steps.
                self._database.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
            elif self._idle:
                self._shrinking, self._idle = self._truncate(), False
        except sqlite3.Error:  # the thread tries again after the next deletion of rollouts
            self._shrinking = False

    def _truncate(self) -> bool:
        """Empty the write-ahead log. Return True if a reader still needs the log."""
        self._database.execute("PRAGMA busy_timeout = 0")  # new batches must not wait for a reader
        try:
            (busy, _, _) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._database.execute("PRAGMA busy_timeout = 5000")
        return bool(busy)

    def _leave_out(self, batch: Batch) -> None:
        """Remove the events of rollouts in `_broken` from a batch, and report their tokens with False."""
        late = [token for token in batch.tokens if token[0].sequence in self._broken]
        if late:
            batch.tokens = [token for token in batch.tokens if token[0].sequence not in self._broken]
            for statement, rows in batch.rows.items():
                column = SEQUENCES[statement]
                batch.rows[statement] = [row for row in rows if row[column] not in self._broken]
            self._on_loop(self._tell, late, False)


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
