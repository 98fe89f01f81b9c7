"""The group commit of the journal and of the ledger. One thread commits all queued items over one connection."""

import asyncio
import logging
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from osmosis_grpc.storage.sqlite.database import LockedFile
from osmosis_grpc.supervise import Consumer, Job, Supervisor

log = logging.getLogger(__name__)

Item = TypeVar("Item")

CHECK_EVERY = 2.0
"""While no item comes, the thread checks the lock again after this many seconds at most."""


class Committer(ABC, Generic[Item]):
    """Commits items on the thread of a Consumer. The constructor starts it. Belongs to the running event loop.

    `job` is the job of the thread, and declares OnFailure.FAIL_OWNER. The thread ends if the lock is lost, or if a
    subclass does not handle an error. Then the supervisor's owner fails, and all waiting and later items fail.
    """

    def __init__(self, file: LockedFile, job: Job, supervisor: Supervisor) -> None:
        self.problem = ""
        """Why the newest transaction was not committed, or empty if it was committed."""
        self.file = file
        self._database = file.database
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._supervisor = supervisor
        self._error: BaseException | None = None
        """The error that has ended the thread, or None."""
        self._made = threading.Event()
        """Set when `_queue` is set. The thread may run before that."""
        self._queue: Consumer[Item] = supervisor.system.consumer(supervisor, job, self)
        self._made.set()

    @abstractmethod
    def _commit(self, items: Sequence[Item]) -> None:
        """Commit items in their order, on the thread. `items` is empty after a timeout, and perhaps at the end."""

    @abstractmethod
    def _fail(self, items: Sequence[Item], error: BaseException) -> None:
        """Report on the event loop that the thread has ended before it committed these items."""

    def _timeout(self) -> float | None:
        """Return how many seconds the thread waits for an item before it calls _commit without items.

        None means CHECK_EVERY, which is also the upper limit. Called on the thread.
        """
        return None

    def _put(self, item: Item) -> None:
        """Queue an item. Fails the item if the thread has ended."""
        if self._error is None:
            self._queue.put(item)
        else:
            self._loop.call_soon(self._fail, [item], self._error)

    def _end(self) -> None:
        """Commit all queued items, and end the thread. The caller must not queue another item."""
        self._queue.end()

    # The thread.

    def timeout(self) -> float:
        """See Consuming.timeout."""
        timeout = self._timeout()
        return CHECK_EVERY if timeout is None else min(timeout, CHECK_EVERY)

    def consume(self, items: Sequence[Item]) -> None:
        """Commit items on the thread. Raises LockLost."""
        self._made.wait()
        self.file.lock.check()
        self._commit(items)

    def died(self, error: BaseException) -> None:
        """Fail all queued items, after an error on the thread or in a call that the thread has scheduled.

        Called on the event loop.
        """
        self._error = error
        self._fail(self._queue.take_left(), error)

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
        """Set the problem, and log when writing fails or works again. Returns whether the problem has changed."""
        if problem and not self.problem:
            log.error("the %s %s cannot be written: %s; trying again", self.file.kind, self.file.path, problem)
        elif self.problem and not problem:
            log.warning("the %s %s can be written again", self.file.kind, self.file.path)
        changed, self.problem = problem != self.problem, problem
        return changed

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop."""
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
