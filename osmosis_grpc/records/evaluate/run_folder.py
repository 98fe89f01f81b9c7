"""The folder of a run: a journal with every event, `run.json` about the whole run, and `results.jsonl` with the rows.

The journal has the format of a server's journal, so commands with --from can read it.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from osmosis_grpc.records.evaluate.errors import RunError
from osmosis_grpc.records.evaluate.results import RowResult
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.storage.lock_file import Lock, Locked
from osmosis_grpc.storage.state_folders import fsync

RUNS = Path(".osmosis/runs")
"""The parent of all run folders, unless the user names another folder."""
SAME = ("command", "agent_loop", "dataset", "offset", "rows")
"""The keys of run.json that are equal in two runs if it makes sense to compare them."""
SCHEMA_VERSION = 1
"""The version of run.json, of the rows in results.jsonl, and of the output of the commands."""
NEWEST = "last"
"""A name for the newest run below RUNS."""
MOST_BYTES = 64 * 1024 * 1024
"""The largest run.json that is read, in bytes."""
MOST_NAMES = 10
"""How many runs an error lists at most."""
_RUN, _RESULTS, _LOCK = "run.json", "results.jsonl", "run.lock"
_ARCHIVE = ".archive-"


class RunFolder:
    """The folder of one run. Rollout ids are `COMMAND-RUN-ROW`, so they differ between runs."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        """The content of run.json."""
        self._lock: Lock | None = None

    @classmethod
    def create(cls, path: Path | None, about: dict[str, Any]) -> "RunFolder":
        """Create the folder of a new run. Raises RunError if that is not possible or it already has a run."""
        now = datetime.now(UTC)
        run_id = f"{now.microsecond:05x}{secrets.token_hex(1)}"  # microseconds first, so that names sort by time
        path = path or RUNS / f"{now:%Y%m%d-%H%M%S}-{run_id}"
        if (path / _RUN).exists() or (path / FILE).exists():
            raise RunError(f"{path} has a run already; name another folder with --save-dir")
        head = {"schema_version": SCHEMA_VERSION, "id": run_id, "state": "running", "started": now.isoformat()}
        folder = cls(path, head | about)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.lock()
            (path / _RESULTS).touch(mode=0o600)
            folder.save()
            fsync(path)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}; name another folder with --save-dir") from None
        return folder

    @classmethod
    def open(cls, name: str, *, replays: bool = True, command: str = "") -> "RunFolder":
        """Open the folder of an earlier run. Raises RunError.

        Args:
            name: See find().
            replays: If false, `last` is the newest run that asked a model.
            command: If set, `last` is the newest run of this command.
        """
        path = cls.find(name, replays=replays, command=command)
        try:
            with _opened(path / _RUN) as file:
                about = json.loads(file.read(MOST_BYTES))
            version = about["schema_version"]
            if version != SCHEMA_VERSION:
                raise RunError(f"{path / _RUN} has version {version}, and this program reads version {SCHEMA_VERSION}")
            return cls(path, about)
        except FileNotFoundError:
            raise RunError(f"{path} is not the folder of a run: it has no {_RUN}{_others()}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path / _RUN} cannot be read: {error}") from None

    @classmethod
    def find(cls, name: str, *, replays: bool = True, command: str = "") -> Path:
        """Find the folder of a run. Raises RunError if there is no such run, or if several match.

        See open() for `replays` and `command`. `name` is a path, `last` for the newest run below RUNS, or the name or
        the id of a run there. The beginning of a name or an id is enough if only one run has it.
        """
        if Path(name).exists():
            return Path(name)
        if name == NEWEST:
            for path in reversed(_runs()):
                if (path / FILE).exists() and cls.open(str(path))._is(command, replays):
                    return path
            raise RunError(f"there is no run{f' of {command}' * bool(command)} in {RUNS}")
        known = _runs()
        same = [path for path in known if name in (path.name, _id_of(path))]
        begins = [path for path in known if path.name.startswith(name) or _id_of(path).startswith(name)]
        found = same or (begins if name else [])
        if len(found) > 1:
            raise RunError(f"{name} begins several runs: {', '.join(path.name for path in found[-MOST_NAMES:])}")
        if not found:
            raise RunError(f"{name} is no folder and no run{_others()}")
        return found[0]

    def _is(self, command: str, replays: bool) -> bool:
        return command in ("", self.about.get("command")) and (replays or not self.about.get("replay"))

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Return whether a folder has a run."""
        return (path / _RUN).exists()

    def lock(self) -> None:
        """Lock the folder against other processes until unlock() or the end of this process. Raises RunError."""
        if self._lock is None:
            try:
                self._lock = Lock(self.path / _LOCK)
            except Locked as locked:
                raise RunError(f"{self.path} is in use by process {locked}; wait for its end, or stop it") from None
            except OSError as error:
                raise RunError(f"{self.path} cannot be used: {error.strerror}") from None

    def unlock(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def archive(self) -> Path:
        """Rename the folder to PATH.archive-TIME, and return the new path. Raises RunError."""
        self.lock()
        target = self.path.with_name(f"{self.path.name}{_ARCHIVE}{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
        try:
            self.path.rename(target)
        except OSError as error:
            raise RunError(f"{self.path} cannot be moved to {target}: {error.strerror}") from None
        self.unlock()
        return target

    def resume(self, about: dict[str, Any]) -> None:
        """Lock the folder to continue the run, and drop a result that a crash has truncated. Raises RunError."""
        self.lock()
        self._drop_torn_result()
        resumed = {"state": "running", "resumed": int(self.about.get("resumed", 0)) + 1}
        self.about = self.about | about | resumed
        for name in ("ended", "summary"):
            self.about.pop(name, None)
        self.save()

    def rollout_id(self, row: int | str) -> str:
        """Return the id of a row's rollout. `row` is the row's number, or the key of one of its runs."""
        return f"{self.about.get('command', 'test')}-{self.about['id']}-{row}"

    def before(self) -> Path | None:
        """Return the newest earlier run below RUNS that has the same command, agent and rows, or None. Skip replays."""
        about = [self.about.get(name) for name in SAME]
        for path in reversed(_runs()):
            if path.name < self.path.name and path.parent == self.path.parent:
                with contextlib.suppress(RunError):
                    other = self.open(str(path)).about
                    if not other.get("replay") and [other.get(name) for name in SAME] == about:
                        return path
        return None

    def save(self) -> None:
        """Write run.json atomically: a crash leaves the old file or the new one."""
        temporary = self.path / f"{_RUN}.new"
        temporary.write_bytes(_encoded(self.about, indent=2))
        fsync(temporary)
        os.replace(temporary, self.path / _RUN)

    def add(self, result: dict[str, Any]) -> None:
        """Append the result of a row, and sync it to disk. If that fails, write nothing and raise OSError."""
        line = _encoded(result)
        with (self.path / _RESULTS).open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / _RESULTS))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)  # don't leave half a result
                raise

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield the results in the order in which the rollouts ended.

        Skips a last line that a crash has truncated, and raises RunError for any other damaged line.
        """
        with _opened(self.path / _RESULTS) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    result = json.loads(line)
                    RowResult.of_record(result)
                except (ValueError, TypeError, AttributeError):
                    raise RunError(
                        f"{self.path / _RESULTS}:{number} is damaged; delete this line: an outcome that is in the "
                        "journal is scored again"
                    ) from None
                yield result

    def newest_results(self) -> dict[tuple[int, int], RowResult]:
        """Return the newest result for each row number and run index. Raises RunError."""
        found = (RowResult.of_record(record) for record in self.results())
        return {(result.row_index, result.run_index): result for result in found}

    def end(self, state: str, summary: dict[str, Any]) -> None:
        """Write the state at the end of the run, "finished" or "interrupted", and the summary."""
        self.about |= {"state": state, "ended": datetime.now(UTC).isoformat(), "summary": summary}
        self.save()

    def _drop_torn_result(self) -> None:
        path = self.path / _RESULTS
        if not path.exists():
            path.touch(mode=0o600)
            return
        with path.open("rb+") as file:
            size = sum(len(line) for line in file if line.endswith(b"\n"))
            file.truncate(size)
            os.fsync(file.fileno())


def short_name(folder: Path) -> str:
    """Return the shortest name that find() takes for a folder: the id of a run below RUNS, else the path."""
    if folder.parent == RUNS and [_id_of(path) for path in _runs()].count(_id_of(folder)) == 1:
        return _id_of(folder)
    return str(folder)


def _runs() -> list[Path]:
    """Return the folders of runs below RUNS, the newest last. Skip archived folders."""
    return sorted(found.parent for found in RUNS.glob(f"*/{_RUN}") if _ARCHIVE not in found.parent.name)


def _id_of(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def _others() -> str:
    """Return a text with the newest runs below RUNS; empty if there are none."""
    names = [path.name for path in _runs()]
    shown = ", ".join(reversed(names[-MOST_NAMES:]))
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"; the runs in {RUNS} are {shown}{more}" if names else ""


def _opened(path: Path) -> IO[bytes]:
    """Open a file for reading. Raises FileNotFoundError, or RunError if the path is a pipe, a device or a folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunError(f"{path} is not a file")
    return open(descriptor, "rb")


def _encoded(value: dict[str, Any], indent: int | None = None) -> bytes:
    """Encode JSON with a line end. Escape surrogates, which occur in file names that are not UTF-8."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
