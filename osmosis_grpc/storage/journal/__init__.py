"""The agent server's journal in SQLite: store.py implements the engine's Journal port."""
