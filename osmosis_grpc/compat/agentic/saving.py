"""Appends trajectories to a file of JSON lines that several processes write. A crash tears no record.

A process locks the file while it writes. A process that was killed while it wrote leaves a line without its end; the
next writer removes that line, and readers leave it out. Its rollout was never reported as saved.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from osmosis_grpc.compat.agentic.trajectory import Trajectory
from osmosis_grpc.protocol.errors import InvalidArgument

DEFAULT_FOLDER = "trajectories"
FILE = "trajectories.jsonl"
BLOCK = 64 * 1024


class TrajectorySaveError(OSError):
    """Trajectories cannot be saved. `trajectories` has them."""

    def __init__(self, message: str, trajectories: Sequence[Trajectory]) -> None:
        super().__init__(message)
        self.trajectories = list(trajectories)


def save_path(path: str | None) -> Path:
    """Return the file for the setting trajectory_save_path."""
    given = Path(path or DEFAULT_FOLDER)
    return given if given.suffix == ".jsonl" else given / FILE


class TrajectoryFile:
    """Appends to one file. Its methods block, so call them on a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
        except OSError as error:
            raise InvalidArgument("trajectory_save_path", f"{path} cannot be written: {error.strerror}") from None

    def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Append trajectories, one line each, and wait until the disk has them. Raises TrajectorySaveError."""
        try:
            lines = [json.dumps(each.to_dict(), ensure_ascii=False, allow_nan=False) + "\n" for each in trajectories]
            data = "".join(lines).encode("utf-8", "surrogatepass")
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                begin = _after_last_line(file.fileno())
                os.ftruncate(file.fileno(), begin)
                try:
                    _write(file.fileno(), data, begin)
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), begin)
                    raise
        except (OSError, ValueError) as error:
            names = ", ".join(each.request_id for each in trajectories[:3])
            raise TrajectorySaveError(f"{self.path}: {names} cannot be saved: {error}", trajectories) from error


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def _after_last_line(descriptor: int) -> int:
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def read_lines(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file of JSON lines, without a last line that has no end.

    Raises InvalidArgument, which names the line, and OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield _trajectory(line, f"{path}:{number}")


def _trajectory(line: bytes, where: str) -> Trajectory:
    try:
        return Trajectory.from_dict(json.loads(line.decode("utf-8", "surrogatepass")))
    except (ValueError, InvalidArgument) as error:
        raise InvalidArgument(where, f"is no trajectory: {error}") from None
