"""Two rules for reads of the journal: an error of the disk is Unavailable, and long reads run on another thread."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from osmosis_grpc.errors import InvalidArgument, Unavailable
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.schema import JournalError
from osmosis_grpc.storage.sqlite.database import connect

R = TypeVar("R")


@contextmanager
def unavailable() -> Iterator[None]:
    """Raise Unavailable for an error of reading, so that the caller may retry."""
    try:
        yield
    except (sqlite3.Error, OSError, InvalidArgument, JournalError) as error:
        raise Unavailable(f"the journal cannot be read: {error}", retry_after=5.0) from error


async def read_on_thread(path: Path, read: Callable[[Reader], R]) -> R:
    """Return read(reader), called on another thread with its own connection. Raises Unavailable."""

    def reading() -> R:
        with closing(connect(path)) as database:
            database.execute("PRAGMA query_only = 1")
            reader = Reader(database)
            with reader.snapshot():
                return read(reader)

    with unavailable():
        return await asyncio.to_thread(reading)
