"""The storage of both programs. The agent server has a journal, and the trainer has a ledger.

`memory_journal.py` and `journal/` implement the engine's Journal port in memory and in SQLite. `ledger/` has the
trainer's ledger. The journal and the ledger share `sqlite/`. It contains files with a version and checksums, one thread
that commits, and the recovery of a damaged file. `lock_file.py` allows only one process to open a file.
`find_damage.py` reports the damage of a journal or a ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_grpc.storage.journal.reader import Reader
    from osmosis_grpc.storage.journal.schema import JournalError
    from osmosis_grpc.storage.journal.sqlite_journal import SqliteJournal
    from osmosis_grpc.storage.memory_journal import MemoryJournal

__all__ = ["JournalError", "MemoryJournal", "Reader", "SqliteJournal"]

_MODULES = {
    "JournalError": "journal.schema",
    "MemoryJournal": "memory_journal",
    "Reader": "journal.reader",
    "SqliteJournal": "journal.sqlite_journal",
}


if not TYPE_CHECKING:  # a command that only reads a journal starts faster

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
