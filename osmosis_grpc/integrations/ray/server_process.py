"""Starts an agent server as a child process, reads its records, and notices its end."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.supervise import OnFailure, job, thread

WATCH = job("scaleout.watch_server", OnFailure.RESTART, "thread")


class ServerProcess:
    """A process that writes one JSON record on each line of stdout. Waits for the first record, or for its end.

    `folder` is its working folder, if it exists.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        options: dict[str, Any] = {"cwd": folder} if folder and Path(folder).is_dir() else {}
        self._process = subprocess.Popen(  # noqa: S603 - the command line of the operator
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            **options,
        )
        assert self._process.stdout is not None
        self._records = self._process.stdout
        self._stopping = False
        line = self._records.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}
        """The first record. Empty if the process ended before it."""
        self.code = None if line else self._wait()
        """The exit code of a process that has ended before its first record."""

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Call `on_end` with the exit code when the process ends by itself. A thread calls it."""

        def step() -> bool:
            if self._records.readline():
                return True
            code = self._wait()
            if not self._stopping:
                on_end(code)
            return False

        thread(WATCH, step)

    def _wait(self) -> int:
        """Wait for the end, close the pipes, and return the exit code."""
        with self._process:  # closes them
            return self._process.wait()

    def stop(self) -> int:
        """Stop the process in good order with SIGTERM. Returns its exit code."""
        self._stopping = True
        self._process.terminate()
        return self._process.wait()
