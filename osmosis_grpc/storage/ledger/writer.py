"""The ledger's thread. It commits all waiting writes in one transaction, and then calls the event loop once."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.storage.ledger.rows import Then
from osmosis_grpc.storage.sqlite.committer import Committer, disk_failed
from osmosis_grpc.storage.sqlite.database import LockedFile
from osmosis_grpc.supervise import OnFailure, Supervisor, job

COMMIT = job("ledger.commit", OnFailure.FAIL_OWNER, "thread")
FLUSH = job("ledger.flush", OnFailure.FAIL_OWNER, "timer")
AFTER = job("ledger.after_commit", OnFailure.REPORT, "callback")

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""
Answer = tuple[Then | None, Any, Exception | None]


class _Job(NamedTuple):
    statements: Sequence[Statement]
    read: Callable[[sqlite3.Connection], Any] | None
    then: Then | None

    def do(self, connection: sqlite3.Connection) -> Any:
        for sql, parameters in self.statements:
            connection.execute(sql, parameters)
        return self.read(connection) if self.read is not None else None


class Writer(Committer[list[_Job]]):
    """Executes statements and reads in the order of the calls, over one connection."""

    def __init__(self, file: LockedFile, supervisor: Supervisor) -> None:
        self._closed = False
        super().__init__(file, COMMIT, FLUSH, supervisor)

    def write(self, statements: Sequence[Statement], then: Then | None = None) -> None:
        """Commit statements after all earlier calls, then call `then`."""
        self._add(_Job(statements, None, then))

    def read(self, read: Callable[[sqlite3.Connection], Any], then: Then) -> None:
        """Call `then` with the result of `read`. The function `read` sees all earlier writes."""
        self._add(_Job((), read, then))

    async def close(self) -> None:
        """Commit all waiting writes, end the thread, and close the file. Idempotent."""
        if not self._closed:
            self._closed = True
            self.flush()
            await self._supervisor.system.run(self._end)
            self.file.close()

    def _add(self, job: _Job) -> None:
        if not self._closed:
            self.batch().append(job)
        elif job.then is not None:
            self._loop.call_soon(job.then, None, LedgerError(f"the ledger {self.file.path} is closed"))

    def _new(self) -> list[_Job]:
        return []

    # On the thread.

    def _commit(self, items: Sequence[list[_Job]]) -> None:
        if jobs := [job for batch in items for job in batch]:
            self._on_loop(self._committed, self._answers(jobs))

    def _answers(self, jobs: Sequence[_Job]) -> list[Answer]:
        try:
            with self._transaction() as database:
                values = [job.do(database) for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0].then, None, error)]
            if not disk_failed(error):  # one of the jobs is the cause
                return [answer for job in jobs for answer in self._answers([job])]
            return [
                answer
                for job in jobs
                for answer in ([(job.then, None, error)] if job.read is None else self._answers([job]))
            ]
        return [(job.then, value, None) for job, value in zip(jobs, values, strict=True)]

    # On the loop.

    def _committed(self, answers: Sequence[Answer]) -> None:
        self._next()
        self._answer(answers)

    def _fail(self, items: Sequence[list[_Job]], error: BaseException) -> None:
        ended = OSError(f"{COMMIT.name} has ended: {error}")
        self._committed([(job.then, None, ended) for batch in items for job in batch])

    def _answer(self, answers: Sequence[Answer]) -> None:
        problem = next((error for _, _, error in answers if error is not None), None)
        self._set_problem("" if problem is None else str(problem) or type(problem).__name__)
        for then, value, error in answers:
            if then is None:
                continue
            failure = None if error is None else LedgerError(f"the ledger {self.file.path} cannot be written: {error}")
            self._supervisor.call(AFTER, then, value, failure, report=partial(self._undone, then))

    def _undone(self, then: Then, error: BaseException) -> None:
        """Call `then` again after its first call has raised. `then` gets an error, as after a failed write."""
        then(None, LedgerError(f"{AFTER.name} of {self.file.path} failed: {type(error).__name__}: {error}"))
