"""The trainer's ledger in SQLite: ledger.py is what the trainer calls."""
