"""The state folders of a server with several workers: the folder itself for worker 0, and workers/K for worker K."""

import re
from pathlib import Path

WORKERS = "workers"
"""The folder within a state folder that has the folders of the other workers."""
_NUMBER = re.compile("[1-9][0-9]{0,2}")


def worker_folder(state: Path, worker: int) -> Path:
    """Return the state folder of a worker."""
    return state / WORKERS / str(worker) if worker else state


def worker_folders(state: Path) -> dict[int, Path]:
    """Return the state folders that are there besides `state` itself, by worker and in their order."""
    try:
        found = [int(path.name) for path in (state / WORKERS).iterdir() if _NUMBER.fullmatch(path.name)]
    except OSError:
        return {}
    return {worker: worker_folder(state, worker) for worker in sorted(found)}
