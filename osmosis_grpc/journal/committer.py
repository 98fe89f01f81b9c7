"""A thread that has a connection to itself: it commits what it is given, and tells the event loop."""

import asyncio
import queue
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

AT_ONCE = 4096
"""Items committed together, at most."""


class Committer(ABC, Generic[Item]):
    """Belongs to the running event loop. Its thread starts at once: what a subclass needs there is made before."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def _commit(self, items: Sequence[Item]) -> None:
        """On the thread: items in the order in which they came; none when its patience or everything is over."""

    def _patience(self) -> float | None:
        """On the thread: seconds after which it commits though nothing has come; None: never."""
        return None

    def _end(self) -> None:
        """Commit what waits, and end. Nothing may be queued from now on."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            items: list[Item] = []
            with suppress(queue.Empty):
                item = self._queue.get(timeout=self._patience())
                while item is not None:
                    items.append(item)
                    if len(items) == AT_ONCE or self._queue.empty():
                        break
                    item = self._queue.get()
                closing = item is None
            self._commit(items)

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")

    def _tell(self, told: Callable[..., None], *what: Any) -> None:
        """Call something on the event loop."""
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(told, *what)


def disk_failed(error: Exception) -> bool:
    """Whether the disk is to blame for what could not be written: then it may be written another time."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    return isinstance(error, OSError | sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
