"""The group commit of the journal and of the ledger. One thread commits all waiting writes in one transaction.

While the thread commits one batch, new writes go to the next batch. The thread starts the next commit after the present
commit has ended, and perhaps after a pause. A pause makes batches larger, which is cheaper: a commit costs the same for
one write and for a hundred. But it makes callers wait. So the pause grows with the size of the batch before it, and
writes that come slowly are committed at once.
"""

import asyncio
import logging
import math
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from osmosis_grpc.storage.sqlite.database import LockedFile
from osmosis_grpc.supervise import Consumer, Job, Supervisor

log = logging.getLogger(__name__)

Batch = TypeVar("Batch", bound=Sized)

PAUSE = 0.000125
"""Seconds between the starts of two commits, for each write of the first one.

If fewer than 8 writes come in a millisecond, each batch is smaller than the one before, until there is no pause."""
LONGEST_PAUSE = 0.004
"""The most seconds between the starts of two commits, unless the first one takes longer."""
CHECK_EVERY = 2.0
"""While no batch comes, the thread checks the lock and the files at least this often, in seconds."""


class Committer(ABC, Generic[Batch]):
    """Commits one batch at a time on the thread of a Consumer. Belongs to the running event loop.

    The constructor starts the thread. `commit` is the job of the thread, and `flush` is the job that gives it a batch.
    Both declare OnFailure.FAIL_OWNER. The thread ends if the lock or a file is lost, or if a subclass does not handle
    an error. Then the supervisor's owner fails, and all waiting and later batches fail.
    """

    def __init__(self, file: LockedFile, commit: Job, flush: Job, supervisor: Supervisor) -> None:
        self.problem = ""
        """Why the newest transaction was not committed, or empty if it was committed."""
        self.file = file
        self._database = file.database
        self._loop = asyncio.get_running_loop()
        self._job = commit
        self._flush_job = flush
        self._supervisor = supervisor
        self._batch = self._new()
        self._busy = False
        """Whether the thread has a batch whose end is not reported."""
        self._earliest = 0.0
        """The earliest start of the next commit, by the loop's clock."""
        self._due = math.inf
        """When the next commit starts at the latest, by the loop's clock, unless one runs then."""
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        """The error that has ended the thread, or None."""
        self._made = threading.Event()
        """Set when `_queue` is set. The thread may run before that."""
        self._queue: Consumer[Batch] = supervisor.system.consumer(supervisor, commit, self)
        self._made.set()

    @abstractmethod
    def _new(self) -> Batch:
        """Return an empty batch. The length of a batch is the number of its writes."""

    @abstractmethod
    def _commit(self, items: Sequence[Batch]) -> None:
        """Commit batches in their order, on the thread. `items` is empty after a timeout, and perhaps at the end.

        Schedule a call of `_next` on the event loop.
        """

    @abstractmethod
    def _fail(self, items: Sequence[Batch], error: BaseException) -> None:
        """Report on the event loop that the thread has ended before it committed these batches."""

    def _timeout(self) -> float | None:
        """Return how many seconds the thread waits for a batch before it calls _commit without batches.

        None means CHECK_EVERY, which is also the upper limit. Called on the thread.
        """
        return None

    # The event loop.

    @property
    def idle(self) -> bool:
        """Whether no batch waits and no transaction runs."""
        return not self._busy and self._timer is None

    def batch(self, wait: float = 0.0) -> Batch:
        """Return the batch of the next transaction. The caller must add to it at once, and must not keep it.

        The write may wait `wait` seconds for others, with which it shares a transaction.
        """
        due = self._loop.time() + wait
        if due < self._due:
            self._due = due
            if not self._busy:
                self._arm()
        return self._batch

    def flush(self) -> None:
        """Give the waiting batch to the thread. Fail it if the thread has ended."""
        self._busy = True
        batch = self._take()
        self._earliest = self._loop.time() + min(LONGEST_PAUSE, PAUSE * len(batch))
        if self._error is None:
            self._queue.put(batch)
        else:
            self._loop.call_soon(self._fail, [batch], self._error)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pause = max(self._earliest, self._due) - self._loop.time()
        self._timer = self._supervisor.call_later(self._flush_job, pause, self.flush, report=self.died)

    def _take(self) -> Batch:
        """Return the waiting batch. The next write begins another one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch, self._due = self._batch, self._new(), math.inf
        return batch

    def _next(self) -> None:
        """Arrange the next commit. A subclass calls it on the event loop at the end of each commit."""
        self._busy = False
        if self._timer is None and self._due < math.inf:
            self._arm()

    def _end(self) -> None:
        """Commit all queued batches, and end the thread. The caller flushes before, and writes nothing afterwards."""
        self._queue.end()

    def died(self, error: BaseException) -> None:
        """Fail all batches, after an error on the thread or in a call that the thread has scheduled."""
        self._error = error
        self._fail([*self._queue.take_left(), self._take()], error)

    # The thread.

    def timeout(self) -> float:
        """See Consuming.timeout."""
        timeout = self._timeout()
        return CHECK_EVERY if timeout is None else min(timeout, CHECK_EVERY)

    def consume(self, items: Sequence[Batch]) -> None:
        """Commit batches on the thread. Raises LockLost, FilesLost."""
        self._made.wait()
        self.file.check()
        self._commit(items)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end of the block. Roll back if the block raises."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            raise

    def _set_problem(self, problem: str) -> bool:
        """Set the problem, and log when writing fails or works again. Return whether the problem has changed."""
        if problem and not self.problem:
            log.error("the %s %s cannot be written: %s; trying again", self.file.kind, self.file.path, problem)
        elif self.problem and not problem:
            log.warning("the %s %s can be written again", self.file.kind, self.file.path)
        changed, self.problem = problem != self.problem, problem
        return changed

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        self._queue.report(self._called, call, arguments)

    def _called(self, call: Callable[..., None], arguments: Sequence[Any]) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._supervisor.failed(self._job, error, self.died)


def disk_failed(error: Exception) -> bool:
    """Return whether the disk has caused an error of writing. After such an error, a retry can succeed."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    return isinstance(error, OSError | sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
