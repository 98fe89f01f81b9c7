"""Reads from the journal's file, and turns its errors into Unavailable: on the event loop, or on another thread."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.sqlite.database import connect
from osmosis_grpc.supervise import System

R = TypeVar("R")


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn an error of reading into Unavailable, which allows the caller to retry."""
    try:
        yield
    except (sqlite3.Error, OSError, InvalidArgument, schema.JournalError) as error:
        raise Unavailable(f"the journal cannot be read: {error}", retry_after=5.0) from error


async def read_on_thread(system: System, path: Path, read: Callable[[Reader], R]) -> R:
    """Call `read` on another thread, and return its result. Raises Unavailable.

    `read` gets a Reader with a connection of its own.
    """

    def reading() -> R:
        with closing(connect(path)) as database:
            database.execute("PRAGMA query_only = 1")
            reader = Reader(database)
            with reader.snapshot():
                return read(reader)

    with unavailable():
        return await system.run(reading)
