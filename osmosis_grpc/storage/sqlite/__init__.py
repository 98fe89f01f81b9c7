"""SQLite files that survive crashes and report damage, for the journal and the ledger.

file_schema.py describes a file, with a checksum for each row. database.py opens a file for one process, and refuses
files of later versions. committer.py has the thread that writes. damaged_file.py notices lost commits, and copies what
SQLite can read of a damaged file to a new one.
"""
