"""Storage of both programs: the agent server's journal and the trainer's ledger.

`memory_journal.py` and `journal/` implement the engine's Journal port, in memory and in SQLite; `ledger/` is what a
trainer stores. Both SQLite files share `sqlite/`: files with a version and checksums, one thread that commits, and the
recovery of rows from a damaged file. `lock.py` allows one process; `examine.py` reports the damage of either file.
"""

from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.schema import JournalError
from osmosis_grpc.storage.journal.sqlite_journal import SqliteJournal
from osmosis_grpc.storage.memory_journal import MemoryJournal

__all__ = ["JournalError", "MemoryJournal", "Reader", "SqliteJournal"]
