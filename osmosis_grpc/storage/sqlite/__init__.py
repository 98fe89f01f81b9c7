"""SQLite files that survive crashes and damage, for the journal and the ledger.

file_schema.py describes a file; locked_file.py and database.py open it for one process and refuse other versions;
checksum.py protects each row; committer.py is the thread that writes. salvage.py copies the rows of a damaged file into
a new one, with pages.py, cells.py and wal.py, which read SQLite's file format without SQLite.
"""
