"""The storage of both programs. The agent server has a journal, and the trainer has a ledger.

`memory_journal.py` and `journal/` implement the engine's Journal port in memory and in SQLite. `ledger/` has the
trainer's Ledger port, and its implementation in SQLite. The journal and the ledger share `sqlite/`. It contains files
with a version and checksums, one thread that commits, and the recovery of rows from a damaged file. `lock_file.py`
allows only one process to open a file. `examine.py` reports the damage of a journal or a ledger.
"""

from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.schema import JournalError
from osmosis_grpc.storage.journal.sqlite_journal import SqliteJournal
from osmosis_grpc.storage.memory_journal import MemoryJournal

__all__ = ["JournalError", "MemoryJournal", "Reader", "SqliteJournal"]
