"""--reload: the server in a child process, started again when a Python file changes."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from osmosis_grpc.errors import MissingExtraError

LOOK_EVERY = 500
"""Milliseconds between two looks at whether the server still runs."""


def run_reloading() -> int:
    """Runs the same command line without --reload, again and again. Returns the last exit code.

    Every start is a new process, made by spawn: a forked one would inherit gRPC's threads.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise MissingExtraError("--reload", "server") from None
    supervisor = _Supervisor([sys.executable, "-m", "osmosis_grpc.serve", *_arguments(sys.argv[1:])])
    for changes in watch(
        Path.cwd(),
        watch_filter=PythonFilter(),
        stop_event=supervisor.over,
        raise_interrupt=False,
        rust_timeout=LOOK_EVERY,
        yield_on_timeout=True,
    ):
        if changes:
            supervisor.restart(", ".join(sorted({Path(path).name for _, path in changes})))
        else:
            supervisor.look()
    return supervisor.end()


class _Supervisor:
    """Starts the server, says when it ended by itself, and passes signals on to it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._signals: list[int] = []
        self._child: subprocess.Popen[bytes]
        self._ended = False
        self.over = threading.Event()
        """Set by the first signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._start()

    def restart(self, names: str) -> None:
        """Stops the server, as SIGTERM does, and starts it again."""
        _say(f"{names} changed; starting again")
        self._child.terminate()
        self._child.wait()
        if not self.over.is_set():
            self._start()

    def look(self) -> None:
        """Says once when the server ended by itself. It has said why."""
        code = self._child.poll()
        if code is not None and not self._ended:
            self._ended = True
            _say(f"serve: ended with exit code {code}; starts again when a Python file below {Path.cwd()} changes")

    def end(self) -> int:
        """Passes on the first signal and returns the exit code. A second signal stops the server at once."""
        self._child.send_signal(self._signals[0])
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _start(self) -> None:
        self._ended = False
        self._child = subprocess.Popen(self._command)

    def _stop(self, number: int, frame: object) -> None:
        self._signals.append(number)
        self.over.set()
        if len(self._signals) > 1:
            self._child.send_signal(number)


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _arguments(given: list[str]) -> list[str]:
    """Returns the arguments without --reload, whatever its variable says, and without the command's name in front."""
    kept = [argument for argument in given if argument != "--reload"]
    return [*(kept[1:] if kept[:1] == ["serve"] else kept), "--no-reload"]
