"""SQLite files that survive crashes and damage, for the journal and the ledger.

file_schema.py describes a file; database.py opens it for one process and refuses other versions;
checksum.py protects each row; committer.py is the thread that writes. salvage.py copies the rows of a damaged file into
a new one, with pages.py, cells.py and wal.py, which read SQLite's file format without SQLite.
"""
