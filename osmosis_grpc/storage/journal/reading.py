"""How the journal reads for the engine: errors of the disk are Unavailable; what takes long runs on another thread."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from osmosis_grpc.errors import InvalidArgument, Unavailable
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.schema import Damaged, JournalError
from osmosis_grpc.storage.sqlite.database import connect

R = TypeVar("R")


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn an error of reading into Unavailable, so that the caller may retry."""
    try:
        yield
    except (sqlite3.Error, OSError, InvalidArgument, JournalError) as error:
        raise Unavailable(f"the journal cannot be read: {error}", retry_after=5.0) from error


def read_now(reader: Reader, read: Callable[[], R]) -> R:
    """Return read(). Raises Unavailable if the disk cannot be read, Damaged for damaged rows."""
    with unavailable():
        try:
            return read()
        except Damaged:  # unless it is, a sweep has deleted rows between two statements
            with reader.snapshot():
                return read()


async def read_on_thread(path: Path, read: Callable[[Reader], R]) -> R:
    """Return read(reader) on another thread, over a connection of its own. Raises the same errors."""

    def reading() -> R:
        with closing(connect(path)) as database:
            database.execute("PRAGMA query_only = 1")
            reader = Reader(database)
            with reader.snapshot():
                return read(reader)

    with unavailable():
        return await asyncio.to_thread(reading)
