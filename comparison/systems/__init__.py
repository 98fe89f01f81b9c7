"""The adapters: one file for each system, of at most 80 lines. To add one, see docs/comparison.md."""
