"""SQLite files that survive crashes and damage: opened, checked, committed to in groups, and read without SQLite.

database.py opens a file and refuses another version's; file_schema.py describes one; checksum.py protects each row;
committer.py is the thread that writes; salvage.py copies a damaged file's rows into a new one, with pages.py, cells.py
and wal.py, which read the file format themselves.
"""
