"""The adapters: one file for each system, of at most 80 lines."""
