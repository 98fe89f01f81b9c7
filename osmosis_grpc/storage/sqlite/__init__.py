"""SQLite files that survive crashes and damage, for the journal and the ledger.

file_schema.py describes a file. database.py opens a file for one process, and refuses files of other versions.
checksum.py protects each row. committer.py has the thread that writes. salvage.py copies the rows of a damaged file to
a new file. It uses pages.py, cells.py and wal.py, which read SQLite's file format without SQLite.
"""
