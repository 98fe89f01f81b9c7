"""The disk of both programs: the agent server's journal and the trainer's ledger.

`journal/` implements the engine's Journal port over SQLite; `ledger/` is what the trainer keeps. Both use `sqlite/`:
files with a version and checksums, one thread that commits, and what reads a damaged file. `lock.py` keeps other
processes out; `examine.py` finds what is damaged in either file.
"""

from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.schema import JournalError
from osmosis_grpc.storage.journal.store import SqliteJournal

__all__ = ["JournalError", "Reader", "SqliteJournal"]
