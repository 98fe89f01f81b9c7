"""The ledger's thread: whatever waits becomes one transaction, and then the event loop is told once."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.storage.lock import Lock
from osmosis_grpc.storage.sqlite.committer import Committer, disk_failed
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

COMMIT = job("ledger.commit", OnFailure.FAIL_OWNER, "thread")
AFTER = job("ledger.after_commit", OnFailure.REPORT, "callback")

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""
Then = Callable[[Any, LedgerError | None], None]
"""Called on the event loop, with what was read, or why nothing was written."""
Answer = tuple[Then | None, Any, Exception | None]


class _Job(NamedTuple):
    statements: Sequence[Statement]
    read: Callable[[sqlite3.Connection], Any] | None
    then: Then | None

    def do(self, connection: sqlite3.Connection) -> Any:
        for sql, parameters in self.statements:
            connection.execute(sql, parameters)
        return self.read(connection) if self.read is not None else None


class Writer(Committer[_Job]):
    """The one who uses a connection, from its start to close()."""

    def __init__(self, database: sqlite3.Connection, path: Path, lock: Lock, supervisor: Supervisor) -> None:
        self.failing = False
        """Whether the newest transaction could not be committed."""
        self._path = path
        self._closed = False
        super().__init__(database, lock, COMMIT, supervisor)

    def write(self, statements: Sequence[Statement], then: Then | None = None) -> None:
        """Commit statements, after all that was asked before; `then` learns of it."""
        self._put(_Job(statements, None, then))

    def read(self, read: Callable[[sqlite3.Connection], Any], then: Then) -> None:
        """Read what stands there after all that was asked before."""
        self._put(_Job((), read, then))

    async def close(self) -> None:
        """Commit what waits, and end."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._end)
            self._database.close()

    def _put(self, job: _Job) -> None:
        if not self._closed:
            super()._put(job)
        elif job.then is not None:
            self._loop.call_soon(job.then, None, LedgerError(f"the ledger {self._path} is closed"))

    # On the thread.

    def _commit(self, items: Sequence[_Job]) -> None:
        if items:
            self._on_loop(self._answer, self._answers(items))

    def _answers(self, jobs: Sequence[_Job]) -> list[Answer]:
        database = self._database
        try:
            database.execute("BEGIN")
            values = [job.do(database) for job in jobs]
            database.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(jobs) == 1:
                return [(jobs[0].then, None, error)]
            if not disk_failed(error):  # one of them is to blame
                return [answer for job in jobs for answer in self._answers([job])]
            return [
                answer
                for job in jobs
                for answer in ([(job.then, None, error)] if job.read is None else self._answers([job]))
            ]
        return [(job.then, value, None) for job, value in zip(jobs, values, strict=True)]

    # On the loop.

    def _fail(self, items: Sequence[_Job], error: BaseException) -> None:
        self._answer([(job.then, None, OSError(f"{COMMIT.name} has ended: {error}")) for job in items])

    def _answer(self, answers: Sequence[Answer]) -> None:
        problem = next((error for _, _, error in answers if error is not None), None)
        if problem is not None and not self.failing:
            log.error("the ledger %s cannot be written: %s; it is tried again with all that comes", self._path, problem)
        elif problem is None and self.failing:
            log.warning("the ledger %s can be written again", self._path)
        self.failing = problem is not None
        for then, value, error in answers:
            if then is None:
                continue
            failure = None if error is None else LedgerError(f"the ledger {self._path} cannot be written: {error}")
            self._supervisor.call(AFTER, then, value, failure, report=partial(self._undone, then))

    def _undone(self, then: Then, error: BaseException) -> None:
        """What follows a commit has raised: to its caller it is as if nothing had been written."""
        then(None, LedgerError(f"{AFTER.name} of {self._path} failed: {type(error).__name__}: {error}"))
