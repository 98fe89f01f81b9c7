"""The thread that commits: whatever waits goes into one transaction, and who waits is told after it.

While one transaction is on its way to the disk, the next one gathers; then it goes, but no
sooner than GATHER after the one before: a commit costs the same for one event and for a hundred.
"""

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from osmosis_grpc.journal.schema import SEQUENCES, connect

log = logging.getLogger(__name__)

RETRY = 1.0
"""Seconds between tries to write again, once that has failed."""
GATHER = 0.004
"""Seconds between the starts of transactions, at least."""
CHUNKS = (1024, 128, 32, 8, 2, 1)
"""Rows of one statement. Python hands its lock over at every statement: the fewer, the better."""
Row = tuple[Any, ...]


class Rollout(Protocol):
    """What a token begins with."""

    sequence: int


Token = tuple[Rollout, int, Any]
"""A rollout, a position, and what whoever appended wants to be told again."""


@dataclass(slots=True, eq=False)
class Batch:
    """What is written together, in this order: before() outside the database, rows, statements."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {statement: [] for statement in SEQUENCES})
    """By statements that take many rows."""
    statements: list[tuple[str, Row]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    """Who is told once it is committed, or cannot be."""
    before: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    """Done once it is committed."""
    shrinks: bool = False
    """Whether the file may give room back."""
    stop: bool = False


class Writer:
    """One thread with the only connection that writes.

    `told` gets tokens in the event loop, and whether they are committed; `told_problem` why
    nothing can be written, and an empty text when that is over.
    """

    def __init__(
        self, path: Path, told: Callable[[list[Token], bool], None], told_problem: Callable[[str], None]
    ) -> None:
        self._path = path
        self._told = told
        self._told_problem = told_problem
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._batch = Batch()
        self._busy = False
        self._flushed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        self._broken: set[int] = set()
        """Rollouts of which an event could not be committed: none that follows may be, either."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def batch(self) -> Batch:
        """What is written next, to be added to at once."""
        if self._timer is None and not self._busy:
            self._arm()
        return self._batch

    def close(self) -> None:
        """Write what waits, and end."""
        if self._timer is not None:
            self._timer.cancel()
        self._batch.stop = True
        self._queue.put(self._batch)
        self._thread.join()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self._flushed + GATHER - self._loop.time()), self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._busy = True
        self._flushed = self._loop.time()
        batch, self._batch = self._batch, Batch()
        self._queue.put(batch)

    def _written(self, tokens: list[Token], ok: bool) -> None:
        """In the event loop: a batch is done with."""
        self._busy = False
        waiting = self._batch
        if self._timer is None and (waiting.tokens or waiting.statements):
            self._arm()
        if tokens:
            self._told(tokens, ok)

    def _run(self) -> None:
        database = connect(self._path, writes=True)
        try:
            batch = Batch()
            while not batch.stop:
                batch = self._next()
                self._write(database, batch)
            with contextlib.suppress(sqlite3.Error):
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            database.close()

    def _next(self) -> Batch:
        """What waits, or, after a while without, a try whether it can be written again."""
        try:
            return self._queue.get(timeout=RETRY if self._problem else None)
        except queue.Empty:
            return Batch(statements=[("INSERT OR REPLACE INTO facts VALUES ('tried', strftime('%s'))", ())])

    def _write(self, database: sqlite3.Connection, batch: Batch) -> None:
        if self._broken:
            self._leave_out(batch)
        problem = ""
        try:
            for call in batch.before:
                call()
            database.execute("BEGIN IMMEDIATE")
            for statement, rows in batch.rows.items():
                _execute(database, statement, rows)
            for statement, values in batch.statements:
                database.execute(statement, values)
            database.execute("COMMIT")
        except Exception as error:  # whatever it was, whoever waits has to be told
            problem = str(error) or type(error).__name__
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            self._broken.update(rollout.sequence for rollout, _, _ in batch.tokens)
        if problem or self._problem:
            self._set_problem(problem)
        self._tell(self._written, batch.tokens, not problem)
        if problem:
            return
        for call in batch.after:
            with contextlib.suppress(OSError):
                call()
        if batch.shrinks:
            with contextlib.suppress(sqlite3.Error):
                database.execute("PRAGMA incremental_vacuum(1024)").fetchall()

    def _leave_out(self, batch: Batch) -> None:
        """Write nothing of rollouts that lack an event."""
        late = [token for token in batch.tokens if token[0].sequence in self._broken]
        if late:
            batch.tokens = [token for token in batch.tokens if token[0].sequence not in self._broken]
            for statement, rows in batch.rows.items():
                place = SEQUENCES[statement]
                batch.rows[statement] = [row for row in rows if row[place] not in self._broken]
            self._tell(self._told, late, False)

    def _set_problem(self, problem: str) -> None:
        if problem and not self._problem:
            log.error("the journal %s cannot be written: %s; trying again", self._path, problem)
        elif not problem:
            log.warning("the journal %s can be written again", self._path)
        if problem != self._problem:
            self._problem = problem
            self._tell(self._told_problem, problem)

    def _tell(self, told: Callable[..., None], *what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(told, *what)


def _execute(database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
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
