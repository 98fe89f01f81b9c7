"""SQLite files that survive crashes and report damage, for the journal and the ledger.

file_schema.py describes a file. database.py opens a file for one process, and refuses files of other versions.
checksum.py protects each row, and log_damage.py notices lost commits. committer.py has the thread that writes.
recovery.py copies what SQLite can read of a damaged file to a new one.
"""
