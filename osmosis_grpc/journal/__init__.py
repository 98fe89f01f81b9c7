"""The agent server's disk: SQLite behind the engine's Journal port.

store.py is the port; reader.py what it and others read; writer.py the thread that commits;
schema.py the tables and their versions; secrets.py the credentials, apart from everything
else; lock.py keeps others out.
"""

from osmosis_grpc.journal.reader import Reader
from osmosis_grpc.journal.schema import JournalError
from osmosis_grpc.journal.store import JournalStore

__all__ = ["JournalError", "JournalStore", "Reader"]
