"""The folders below a state folder: those of the other workers, and those with the files of rollouts.

The state folder itself belongs to worker 0, and workers/K to worker K. The folders of deleted rollouts are deleted.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path


def fsync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


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


NAME = "rollouts"
"""The folder below the state folder. Each folder in it has the sequence number of its rollout as its name."""


def rollout_folder(state: Path, sequence: int) -> Path:
    """Return the folder of a rollout below a state folder. It need not exist."""
    return state / NAME / str(sequence)


class RolloutFolders:
    """The folders below a state folder. `budget` is the most bytes of all files together."""

    def __init__(self, state: Path, budget: int, last_sequence: int) -> None:
        """Delete the folders of rollouts that a lost journal had: their numbers are above `last_sequence`."""
        self._state, self._budget = state, budget
        for sequence in self._sequences():
            if sequence > last_sequence:
                self._delete(sequence)

    @property
    def exist(self) -> bool:
        """Whether there can be a folder."""
        return (self._state / NAME).is_dir()

    def path(self, sequence: int) -> Path:
        """Return the folder of a rollout. It need not exist."""
        return rollout_folder(self._state, sequence)

    def sweep(self, kept: Callable[[Collection[int]], Collection[int]]) -> None:
        """Delete the folders of deleted rollouts. Over the budget, also delete the folders of the oldest rollouts.

        `kept` gets sequence numbers, and returns those whose rollouts are in the journal. It blocks.
        """
        found = self._sequences()
        known = set(kept(found))
        sizes = {sequence: self._size(sequence) for sequence in found if sequence in known}
        used = sum(sizes.values())
        for sequence in found:
            if sequence not in known:
                self._delete(sequence)
            elif used > self._budget:
                used -= sizes[sequence]
                self._delete(sequence)

    def _sequences(self) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._state / NAME) if name.isdecimal())
        except FileNotFoundError:
            return []

    def _size(self, sequence: int) -> int:
        with contextlib.suppress(OSError), os.scandir(self.path(sequence)) as found:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in found)
        return 0

    def _delete(self, sequence: int) -> None:
        shutil.rmtree(self.path(sequence), ignore_errors=True)
