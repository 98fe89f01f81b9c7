"""The agent server's disk: SQLite behind the engine's Journal port.

store.py is the port; reader.py what it and others read; writer.py what is committed when; retention.py what is dropped;
schema.py the tables; rows.py and checksum.py whether a row is what was written; mending.py what a start puts right;
secrets.py the credentials, apart from everything else.

What the trainer's ledger needs, too: lock.py keeps other processes out, database.py opens and refuses, tables.py knows
the version, committer.py is the thread that writes; salvage.py reads a damaged file into a fresh one, by the pages,
cells and log that pages.py, cells.py and wal.py read without SQLite; examine.py tells what is damaged.
"""

from osmosis_grpc.journal.reader import Reader
from osmosis_grpc.journal.schema import JournalError
from osmosis_grpc.journal.store import JournalStore

__all__ = ["JournalError", "JournalStore", "Reader"]
