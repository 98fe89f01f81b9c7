"""A workspace: a folder, and the processes that run in it. When it ends, both go, even if the server is killed."""

import atexit
import contextlib
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.tools import reaper
from osmosis_grpc.tools.uninterrupted import uninterrupted

log = logging.getLogger(__name__)

_threads = DaemonThreads(16)
"""The threads that make and remove folders, and kill processes."""


class Workspace:
    """A new folder below the temporary folder. Use it as `async with Workspace() as space`.

    At the end of the block, every process with the variables in `environment` is killed, and the folder is removed. If
    this process dies before that, the reaper does both. With a `user`, which only root can set, the folders `work` and
    `tmp` belong to this user, and every process of this user is killed, too.

    Several programs can run at once. When one ends, the others continue.
    """

    def __init__(self, user: int | None = None) -> None:
        self.user = user
        self.marker = secrets.token_hex(16)
        self.folder = Path(tempfile.gettempdir()).absolute() / f"osmosis-{self.marker}"
        """The folder. Only this user can read it."""
        self.work = self.folder / "work"
        """An empty folder, for the files of a program."""
        self.temporary = self.folder / "tmp"
        """An empty folder, for temporary files of a program."""
        self._lock = threading.Lock()
        """Held while the last program ends, so that a new program does not start among processes that are killed."""
        self._programs = self._begun = 0
        self._removed = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process of this workspace needs."""
        return {reaper.MARKER: self.marker, "TMPDIR": str(self.temporary)}

    async def __aenter__(self) -> "Workspace":
        try:
            await uninterrupted(_threads.run(self.make))
        except BaseException:
            await uninterrupted(_threads.run(self.remove))
            raise
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await uninterrupted(_threads.run(self.remove))

    async def write(self, name: str, data: bytes) -> Path:
        """Write a file into the folder, and return its path. Raises OSError."""
        path = self.folder / name
        await _threads.run(lambda: path.write_bytes(data))
        return path

    def begin_program(self) -> str:
        """Return the marker of a program that begins. It blocks. Raises OSError if the workspace has ended."""
        with self._lock:
            if self._removed:
                raise OSError("the workspace has ended")
            self._programs += 1
            self._begun += 1
            return f"{self.marker}.{self._begun}"

    def end_program(self, marker: str) -> None:
        """Kill the processes that a program has left. It blocks.

        If no other program runs, every process of the workspace is killed, even without the marker.
        """
        with self._lock:
            self._programs -= 1
            if not self._programs:
                self.kill()
                return
        kill_marked({marker: None})

    def kill(self) -> None:
        """Kill every process of the workspace. It blocks, so it is called on a thread."""
        kill_marked({self.marker: self.user})

    def make(self) -> None:
        """Make the folders. It blocks, so it is called on a thread. Raises OSError."""
        _reaper.begins(self)
        self.folder.mkdir(mode=0o700 if self.user is None else 0o711)
        for folder in (self.work, self.temporary):
            self._make_folder(folder)

    def clear(self) -> None:
        """Replace `work` by an empty folder. It blocks, so it is called on a thread. Raises OSError."""
        reaper.remove_folders(self.work)
        self._make_folder(self.work)

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o777 if self.user is None else 0o700)
        if self.user is not None:
            os.chown(folder, self.user, self.user)

    def remove(self) -> None:
        """Kill the processes and remove the folder. It blocks, so it is called on a thread."""
        with self._lock:
            self._removed = True
        self.kill()
        reaper.remove_folders(self.folder)
        if self.folder.exists():
            log.warning("a folder cannot be removed and is left behind: %s", self.folder)
        _reaper.ends(self)


class _Reaper:
    """The reaper process of this process. It starts with the first workspace, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._open: dict[str, Workspace] = {}
        """The open workspaces, by marker."""

    def begins(self, space: Workspace) -> None:
        """Report the start of a workspace, and wait until the reaper knows it. Raises OSError without a reaper."""
        with self._lock:
            self._open[space.marker] = space
            if self._process is not None:
                if self._confirmed(self._process, space.marker):
                    return
                self._stop(self._process)  # it was killed
            self._process = self._started()
            if not all(self._confirmed(self._process, marker) for marker in self._open):
                raise OSError("the process that cleans up after this one does not start")

    def ends(self, space: Workspace) -> None:
        """Report the end of a workspace."""
        with self._lock:
            self._open.pop(space.marker, None)
            if self._process is not None:
                with contextlib.suppress(OSError):
                    _pipe(self._process.stdin).write(reaper.ends(space.marker))

    def _confirmed(self, process: "subprocess.Popen[bytes]", marker: str) -> bool:
        try:
            space = self._open[marker]
            _pipe(process.stdin).write(reaper.begins(marker, str(space.folder), space.user))
            return bool(_pipe(process.stdout).read(1))
        except OSError:
            return False

    def _started(self) -> "subprocess.Popen[bytes]":
        # The path is used instead of -m, because the package imports much more than the file needs.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            start_new_session=True,
        )

    def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()
        process.wait()
        self._process = None

    def close(self) -> None:
        """End the reaper. It cleans up the open workspaces."""
        with self._lock:
            if self._process is not None:
                self._stop(self._process)

    def forked(self) -> None:
        """Close the pipe in a forked child, because the reaper waits until the last copy of the pipe is closed."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            process.returncode = 0  # it is not a child of this process
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


_reaper = _Reaper()
atexit.register(_reaper.close)
os.register_at_fork(after_in_child=_reaper.forked)


def kill_marked(markers: reaper.Markers) -> None:
    """Kill the processes of markers, see reaper.kill_marked(). It blocks, so it is called on a thread."""
    reaper.kill_marked(markers, _searches.kill_once)


class _Batch:
    """The markers of one search, and what it has found."""

    def __init__(self) -> None:
        self.markers: dict[str, int | None] = {}
        self.found: reaper.Found | None = None


class _Searches:
    """Runs one search at a time. The threads that wait meanwhile share the next one."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Reset the state in a forked child, because a thread of its parent may have held a lock."""
        self._lock = threading.Lock()
        self._searching = threading.Lock()
        self._next = _Batch()

    def kill_once(self, markers: reaper.Markers) -> reaper.Found:
        """Do what reaper.kill_once() does, after this call has begun."""
        with self._lock:
            batch = self._next
            batch.markers |= markers
        with self._searching:
            if batch.found is None:
                with self._lock:
                    self._next = _Batch()
                batch.found = reaper.kill_once(batch.markers)
        found, unsure = batch.found
        return {marker: found[marker] for marker in markers if marker in found}, unsure


_searches = _Searches()
os.register_at_fork(after_in_child=_searches.forked)
