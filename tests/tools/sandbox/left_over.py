"""Finds processes that programs of a sandbox have left."""

from pathlib import Path


def processes_with(words):
    """The living processes of this machine whose command line has these words; a null character is between two."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if words.encode() in (path / "cmdline").read_bytes() and state not in "ZX":
                found.append(int(path.name))
        except OSError:
            continue
    return found
