"""The disk of a simulated program: its journal and its ledger commit on a timer of the event loop.

SimulatedSystem.consumer() (system.py) returns a SimulatedConsumer, where the System of this machine starts a thread.
The journal and the ledger are the unmodified ones, with real SQLite files. The next process finds everything that the
process before has committed, and nothing else.

A test sets what happens: `disk.full` fails every commit until it is False again, `disk.failures` fails so many further
commits, and `disk.crash` kills the process at its next commit. Disk.kill() ends the use of the files, as the end of a
process does. Call it when a process is killed; a crash at a commit calls it before `killed`.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from enum import StrEnum
from random import Random
from typing import Any

from osmosis_grpc.storage.sqlite.committer import CHECK_EVERY
from osmosis_grpc.supervise import Consumer, Job

EMPTIED = 0.9
"""How often the write-ahead log is empty after a crash, as a share of all crashes."""


class Crash(StrEnum):
    """Where a process dies."""

    BEFORE = "before a transaction"
    DURING = "in a transaction, before its COMMIT"
    COMMITTED = "after a COMMIT, before the steps that follow it"
    UNREPORTED = "after a COMMIT, before the event loop knows it"
    REPORTED = "after the report of a COMMIT"


class Disk:
    """The disk of one process. `draw` chooses the duration of each commit.

    `killed` is called with the reason after a crash at a commit. `note` is called with `commit` or `commit failed`, and
    with the fields of the operation (operations.py).
    """

    def __init__(
        self, draw: Random, killed: Callable[[str], None], note: Callable[..., None] = lambda kind, **fields: None
    ) -> None:
        self.full = False
        """Whether every commit fails."""
        self.failures = 0
        """How many further commits fail."""
        self.crash: Crash | None = None
        """Where the process dies, at its next commit with items. Becomes None when the process has died."""
        self.slowest = 0.005
        """The longest time of a commit, in seconds."""
        self.dead = False
        """Whether the process was killed. Nothing is committed or reported from then on."""
        self.note = note
        self._draw = draw
        self._killed = killed
        self._files: list[Any] = []

    def opened(self, file: Any) -> None:
        """Note a LockedFile that the process has opened."""
        self._files.append(file)

    def duration(self) -> float:
        """Return the seconds from the first item to the commit, or from the commit to its report."""
        return self._draw.uniform(0.0, self.slowest)

    def kill(self) -> None:
        """End the use of all files, as the end of a process does. Idempotent. The lock of each file is free then.

        Mostly the write-ahead log is emptied, because reading a log takes long. The content is the same.
        """
        self.dead = True
        for file in self._files:
            if self._draw.random() < EMPTIED:
                with suppress(sqlite3.Error):
                    file.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            file.close()
        self._files.clear()

    def crashed(self, where: Crash, store: str) -> None:
        """Kill the process."""
        self.crash = None
        self.kill()
        Context().run(self._killed, f"{where} of its {store}")


class SimulatedConsumer(Consumer[Any]):
    """Consumes its items some time after the first of them was queued, and reports some time later."""

    def __init__(self, disk: Disk, owner: Any, job: Job, consuming: Any) -> None:
        self._disk, self._owner, self._job, self._consuming = disk, owner, job, consuming
        self._store = job.name.partition(".")[0]
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._taken: list[Any] = []
        self._reports: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.TimerHandle | None = None
        self._ended = False
        disk.opened(consuming.file)

    def put(self, item: Any) -> None:
        if not self._items:
            self._arm(self._disk.duration())
        self._items.append(item)

    def report(self, call: Callable[..., None], *arguments: Any) -> None:
        self._reports.append((call, arguments))

    def end(self) -> None:
        """Commit what is left at once. A process that ends in good order does not die here."""
        while self._items and not self._ended:
            self._consume()
        if not self._ended:
            self._consume()
        self._end()
        self._deliver()

    def take_left(self) -> list[Any]:
        left = [*self._taken, *self._items]
        self._taken.clear()
        self._items.clear()
        return left

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended:
            self._timer = self._loop.call_later(seconds, self._due)

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        if self._disk.dead or self._ended:
            return
        where = self._disk.crash if self._items else None
        if where is Crash.BEFORE:
            self._disk.crashed(where, self._store)
            return
        self._consume(where)
        if where in (Crash.DURING, Crash.COMMITTED, Crash.UNREPORTED):
            self._disk.crashed(where, self._store)
            return
        if where is Crash.REPORTED:
            self._deliver()
            self._loop.call_soon(self._disk.crashed, where, self._store)
            return
        if self._reports and self._reporting is None:
            self._reporting = self._loop.call_later(self._disk.duration(), self._deliver)
        timeout = self._consuming.timeout()
        if self._items:
            self._arm(0.0)
        elif timeout < CHECK_EVERY:  # otherwise it only checks the lock again
            self._arm(timeout)

    def _consume(self, where: Crash | None = None) -> None:
        """Commit what waits. Its reports wait for _deliver()."""
        self._taken = list(self._items)
        self._items.clear()
        failing = self._disk.full or (self._disk.failures > 0 and bool(self._taken))
        if failing and self._taken and not self._disk.full:
            self._disk.failures -= 1
        if where is Crash.COMMITTED:
            _leave_out_last_steps(self._taken)
        database = self._consuming.file.database
        if failing or where is Crash.DURING:
            database.execute("PRAGMA query_only = 1")
        try:
            self._consuming.consume(self._taken)
        except Exception as error:  # the thread of a real Consumer ends here
            self._end()
            self._loop.call_soon(self._owner.failed, self._job, error, self._consuming.died)
            return
        finally:
            with suppress(Exception):  # the crash has closed it
                database.execute("PRAGMA query_only = 0")
        if self._taken and failing:
            self._disk.note("commit failed", store=self._store, error="the disk is full")
        elif self._taken and where is None:
            self._disk.note("commit", store=self._store, size=len(self._taken))
        self._taken = []

    def _deliver(self) -> None:
        """Call all reports on the event loop, in their order."""
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        reports, self._reports = self._reports, []
        if not self._disk.dead:
            for call, arguments in reports:
                self._loop.call_soon(call, *arguments)


def _leave_out_last_steps(items: Sequence[Any]) -> None:
    """Remove the steps of a journal's batches that come after the COMMIT."""
    for item in items:
        if hasattr(item, "after"):
            item.after.clear()
