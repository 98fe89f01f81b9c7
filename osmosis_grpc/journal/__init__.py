"""The agent server's disk: SQLite behind the engine's Journal port.

store.py is the port; reader.py what it and others read; writer.py what is committed when;
schema.py the tables; secrets.py the credentials, apart from everything else. What any file of
SQLite's needs, the trainer's ledger too: lock.py keeps other processes out, database.py opens
and migrates, committer.py is the thread that writes.
"""

from osmosis_grpc.journal.reader import Reader
from osmosis_grpc.journal.schema import JournalError
from osmosis_grpc.journal.store import JournalStore

__all__ = ["JournalError", "JournalStore", "Reader"]
