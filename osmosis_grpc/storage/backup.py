"""Copies a state folder or a ledger while a process uses it. The copy is consistent; a failed copy leaves no file."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from osmosis_grpc.storage.journal import schema as journal
from osmosis_grpc.storage.journal.credentials import FOLDER as CREDENTIALS
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.storage.sqlite.database import look
from osmosis_grpc.storage.sqlite.file_schema import Schema
from osmosis_grpc.storage.state_folders import NAME as ROLLOUTS
from osmosis_grpc.storage.state_folders import fsync, worker_folder, worker_folders

LEDGER_FILE = "ledger.db"
"""The name of a ledger's copy."""
PAGES = 1024
"""The pages that are copied between two calls of `progress`."""

Progress = Callable[[int, int], None]
"""Called with the number of copied bytes, and of all bytes."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, which becomes `target` if the block ends without an error.

    An error deletes the folder. Raises FileExistsError if `target` is there and is not an empty folder, and OSError.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} is there already; name a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a backup that was killed
    new.mkdir(mode=0o700)
    try:
        yield new
        for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
            fsync(folder)
        new.replace(target)
        fsync(target.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def copy_workers(state: Path, target: Path, progress: Callable[[Path], Progress]) -> None:
    """Copy a state folder with the folders of all its workers, each as in copy_state()."""
    copy_state(state, target, progress(state))
    for worker, folder in worker_folders(state).items():
        if (folder / journal.FILE).exists():
            copy = worker_folder(target, worker)
            copy.mkdir(mode=0o700, parents=True)
            copy_state(folder, copy, progress(folder))


def copy_state(state: Path, target: Path, progress: Progress) -> None:
    """Copy the state folder of a process: the journal, the credentials of running rollouts, the folders of rollouts.

    The server writes the credentials of a rollout before the journal has the rollout, and deletes them after its end.
    So they are copied before and after the journal. Raises JournalError, OSError, sqlite3.Error.
    """
    _copy_files(state / CREDENTIALS, target / CREDENTIALS)
    with closing(look(state / journal.FILE, journal.JOURNAL)) as database:
        _copy_files(state / CREDENTIALS, target / CREDENTIALS)
        _copy_database(database, target / journal.FILE, progress)
    if (state / ROLLOUTS).is_dir():
        for folder in sorted((state / ROLLOUTS).iterdir()):
            _copy_files(folder, target / ROLLOUTS / folder.name)


def copy_ledger(ledger: Path, target: Path, progress: Progress) -> None:
    """Copy a trainer's ledger into a folder. Raises LedgerError, OSError, sqlite3.Error."""
    with closing(look(ledger, LEDGER)) as database:
        _copy_database(database, target / LEDGER_FILE, progress)


def copied_schemas(target: Path) -> list[tuple[Path, Schema]]:
    """Return the databases of a backup."""
    folders = [target, *worker_folders(target).values()]
    known = [*((folder / journal.FILE, journal.JOURNAL) for folder in folders), (target / LEDGER_FILE, LEDGER)]
    return [(path, schema) for path, schema in known if path.exists()]


def _copy_database(database: sqlite3.Connection, target: Path, progress: Progress) -> None:
    """Copy what a connection sees in its open transaction. Writers continue meanwhile."""
    target.touch(mode=0o600)
    (size,) = database.execute("PRAGMA page_size").fetchone()
    with closing(sqlite3.connect(target)) as copy:
        database.backup(
            copy, pages=PAGES, progress=lambda _, left, total: progress((total - left) * size, total * size)
        )
    fsync(target)


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a folder without its folders. Leave out files that are copied already, or deleted meanwhile."""
    with suppress(FileNotFoundError):
        for path in sorted(source.iterdir()):
            copy = target / path.name
            if not path.is_file() or copy.exists():
                continue
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                shutil.copy2(path, copy)
                fsync(copy)
