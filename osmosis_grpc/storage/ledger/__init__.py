"""The trainer's ledger: its port, and the implementation in SQLite."""

from osmosis_grpc.storage.ledger.ledger_port import ChatRow, Ledger, LedgerRollout
from osmosis_grpc.storage.ledger.sqlite_ledger import SqliteLedger

__all__ = ["ChatRow", "Ledger", "LedgerRollout", "SqliteLedger"]
