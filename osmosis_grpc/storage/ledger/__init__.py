"""The trainer's ledger in SQLite."""

from osmosis_grpc.storage.ledger.rows import ChatRow, LedgerRollout
from osmosis_grpc.storage.ledger.sqlite_ledger import SqliteLedger

__all__ = ["ChatRow", "LedgerRollout", "SqliteLedger"]
