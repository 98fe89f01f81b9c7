"""The ledger's thread: whatever waits becomes one transaction, and then the event loop is told once."""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.errors import LedgerError

log = logging.getLogger(__name__)

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""
Then = Callable[[Any, LedgerError | None], None]
"""Called on the event loop, with what was read, or why nothing was written."""
MAX_JOBS = 4096
"""Jobs of one transaction."""


class _Job(NamedTuple):
    statements: Sequence[Statement]
    read: Callable[[sqlite3.Connection], Any] | None
    then: Then | None

    def do(self, connection: sqlite3.Connection) -> Any:
        for sql, parameters in self.statements:
            connection.execute(sql, parameters)
        return self.read(connection) if self.read is not None else None


class Writer:
    """The one who uses a connection, from its start to close()."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.failing = False
        """Whether the newest transaction could not be committed."""
        self._connection = connection
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

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
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._connection.close()

    def _put(self, job: _Job) -> None:
        if not self._closed:
            self._jobs.put(job)
        elif job.then is not None:
            self._loop.call_soon(job.then, None, LedgerError(f"the ledger {self._path} is closed"))

    # On the thread.

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == MAX_JOBS or self._jobs.empty():
                    break
                job = self._jobs.get()
            closing = job is None
            if not jobs:
                continue
            answers = self._commit(jobs)
            try:
                self._loop.call_soon_threadsafe(self._tell, answers)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                return

    def _commit(self, jobs: Sequence[_Job]) -> list[tuple[Then | None, Any, Exception | None]]:
        connection = self._connection
        try:
            connection.execute("BEGIN")
            values = [job.do(connection) for job in jobs]
            connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(jobs) == 1:
                return [(jobs[0].then, None, error)]
            if not isinstance(error, sqlite3.OperationalError):  # one of them is to blame, not the disk
                return [answer for job in jobs for answer in self._commit([job])]
            return [
                answer for job in jobs
                for answer in ([(job.then, None, error)] if job.read is None else self._commit([job]))
            ]  # fmt: skip
        return [(job.then, value, None) for job, value in zip(jobs, values, strict=True)]

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.warning("the ledger %s cannot be rolled back: %s", self._path, error)

    # On the loop.

    def _tell(self, answers: Sequence[tuple[Then | None, Any, Exception | None]]) -> None:
        problem = next((error for _, _, error in answers if error is not None), None)
        if problem is not None and not self.failing:
            log.error("the ledger %s cannot be written: %s; it is tried again with all that comes", self._path, problem)
        elif problem is None and self.failing:
            log.warning("the ledger %s can be written again", self._path)
        self.failing = problem is not None
        for then, value, error in answers:
            if then is None:
                continue
            told = None if error is None else LedgerError(f"the ledger {self._path} cannot be written: {error}")
            try:
                then(value, told)
            except Exception:
                log.exception("what follows a commit of the ledger failed")
