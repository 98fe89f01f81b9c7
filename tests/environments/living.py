"""Which processes live: those that an environment has started."""

from pathlib import Path


def alive(pid):
    """Whether a process runs."""
    return _stat(pid)[0] not in "ZX"


def descendants(pid):
    """The processes that a process and its children have started, but not the one that cleans up after it."""
    parents = {int(path.name): _stat(path.name)[1] for path in Path("/proc").iterdir() if path.name.isdigit()}
    found, newest = set(), {pid}
    while newest := {each for each, parent in parents.items() if parent in newest} - found:
        found |= newest
    return {each for each in found if "reaper.py" not in _command(each)}


def _stat(pid):
    """The state and the parent of a process."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "X", 0
    return state, int(parent)


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
