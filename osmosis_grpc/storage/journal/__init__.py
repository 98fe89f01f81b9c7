"""The agent server's journal in SQLite. `sqlite_journal.py` implements the engine's Journal port."""
