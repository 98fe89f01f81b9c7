"""A journal or ledger file with its lock: one process at a time writes it."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from osmosis_grpc.storage.lock import Lock, Locked
from osmosis_grpc.storage.sqlite.database import open_database
from osmosis_grpc.storage.sqlite.file_schema import Schema


class LockedFile:
    """A file, its lock, and the connection that writes it. Creates a missing file and repairs a damaged one.

    Raises Locked, OSError, sqlite3.Error, and schema.error for a file of another program or version.
    """

    def __init__(self, path: Path, lock: Path, schema: Schema) -> None:
        self.path = path
        self.kind = schema.kind
        with ExitStack() as stack:
            self.lock = Lock(lock)
            stack.callback(self.lock.close)
            self.database = open_database(path, schema)
            stack.callback(self.database.close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the connection, then release the lock. Idempotent."""
        self._stack.close()


@contextmanager
def explained(schema: Schema, path: Path, advice: str) -> Iterator[None]:
    """Raise schema.error with the path for every error of opening a file."""
    try:
        yield
        return
    except Locked as lock:
        problem = f"is in use by process {lock.holder}: {advice}"
    except OSError as error:
        problem = f"cannot be used as a {schema.kind}: {error.strerror or error}"
    except sqlite3.Error as error:
        problem = f"cannot be used as a {schema.kind}: {error}"
    raise schema.error(f"{path} {problem}")
