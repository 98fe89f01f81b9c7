"""The group commit of the journal and of the ledger: one thread commits what is queued, over the writing connection."""

import asyncio
import logging
import queue
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from osmosis_grpc.storage.sqlite.locked_file import LockedFile
from osmosis_grpc.supervise import Job, Supervisor

log = logging.getLogger(__name__)

Item = TypeVar("Item")

CHECK_EVERY = 2.0
"""Seconds between two looks at the lock while nothing is committed."""
AT_ONCE = 4096
"""Items committed together, at most."""


class Committer(ABC, Generic[Item]):
    """Belongs to the running event loop. Its thread starts at once: what a subclass needs there is made before.

    `job` is its thread, with OnFailure.FAIL_OWNER: an error that a subclass does not expect ends the thread, fails the
    supervisor's owner, and fails every item, those that come later included. So does a lock that is lost.
    """

    def __init__(self, file: LockedFile, job: Job, supervisor: Supervisor) -> None:
        self.problem = ""
        """Why the newest transaction was not committed; empty if it was."""
        self._file = file
        self._database = file.database
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._supervisor = supervisor
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._taken: list[Item] = []
        """Items that the thread commits now."""
        self._error: BaseException | None = None
        """Why the thread has ended; None while it runs."""
        self._thread = supervisor.thread(job, self._step, self._died)

    @abstractmethod
    def _commit(self, items: Sequence[Item]) -> None:
        """On the thread: items in the order in which they came; none when its patience or everything is over."""

    @abstractmethod
    def _fail(self, items: Sequence[Item], error: BaseException) -> None:
        """On the event loop: the thread has ended without these items; tell those who wait for them."""

    def _patience(self) -> float | None:
        """On the thread: seconds after which it commits though nothing has come; None: never."""
        return None

    def _put(self, item: Item) -> None:
        """Queue an item. It fails at once if the thread has ended."""
        if self._error is None:
            self._queue.put(item)
        else:
            self._loop.call_soon(self._fail, [item], self._error)

    def _end(self) -> None:
        """Commit what waits, and end. Nothing may be queued from now on."""
        self._queue.put(None)
        self._thread.join()

    def _step(self) -> bool:
        """Commit once, on the thread. Returns False after the last time."""
        closing = False
        items = self._taken = []
        with suppress(queue.Empty):
            patience = self._patience()
            item = self._queue.get(timeout=CHECK_EVERY if patience is None else min(patience, CHECK_EVERY))
            while item is not None:
                items.append(item)
                if len(items) == AT_ONCE or self._queue.empty():
                    break
                item = self._queue.get()
            closing = item is None
        self._file.lock.check()
        self._commit(items)
        self._taken = []
        return not closing

    def _died(self, error: BaseException) -> None:
        """On the event loop: the thread has ended by an error, or what it told the event loop has raised."""
        self._error = error
        items, self._taken = list(self._taken), []
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    items.append(item)
        self._fail(items, error)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end; roll back if anything raises."""
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
        """Note why nothing can be written, or with an empty text that it can. Returns whether that is new."""
        if problem and not self.problem:
            log.error("the %s %s cannot be written: %s; trying again", self._file.kind, self._file.path, problem)
        elif self.problem and not problem:
            log.warning("the %s %s can be written again", self._file.kind, self._file.path)
        changed, self.problem = problem != self.problem, problem
        return changed

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something on the event loop."""
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(self._called, call, arguments)

    def _called(self, call: Callable[..., None], arguments: Sequence[Any]) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._supervisor.failed(self._job, error, self._died)


def disk_failed(error: Exception) -> bool:
    """Whether the disk is to blame for what could not be written: then it may be written another time."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    return isinstance(error, OSError | sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
