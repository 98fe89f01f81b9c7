"""Implements --reload: runs the server in a child process, and restarts the child when a Python file changes."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.serve.json_output import say_error

LOOK_EVERY = 500
"""Milliseconds between two checks that the server still runs."""


def run_reloading() -> int:
    """Run the same command line without --reload, and restart it on each change. Return the last exit code.

    Each start is a new process and not a fork, because forking after the import of grpc is unsafe.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise MissingExtraError("--reload", "server") from None
    supervisor = _Supervisor([sys.executable, "-m", "osmosis_grpc.serve", *_arguments(sys.argv[1:])])
    for changes in watch(
        Path.cwd(),
        watch_filter=PythonFilter(extra_extensions=(".toml",)),
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
    """Starts and restarts the server process, forwards signals to it, and reports if it ends by itself."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._signals: list[int] = []
        self._child: subprocess.Popen[bytes]
        self._ended = False
        self.over = threading.Event()
        """The first signal sets this event."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._start()

    def restart(self, names: str) -> None:
        """Stop the server with SIGTERM and start it again."""
        say_error(f"{names} changed; restarting the server")
        self._child.terminate()
        self._child.wait()
        if not self.over.is_set():
            self._start()

    def look(self) -> None:
        """If the server ended by itself, say so once. The server has already printed the reason."""
        code = self._child.poll()
        if code is not None and not self._ended:
            self._ended = True
            say_error(
                f"serve: ended with exit code {code}; restarts when a Python or TOML file below {Path.cwd()} changes"
            )

    def end(self) -> int:
        """Forward the first signal and return the exit code. A second signal stops the server at once."""
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


def _arguments(given: list[str]) -> list[str]:
    """Return the arguments without the command's name and --reload, and with --no-reload.

    --no-reload is needed because the environment variable may ask for --reload, too.
    """
    kept = [argument for argument in given if argument != "--reload"]
    return [*(kept[1:] if kept[:1] == ["serve"] else kept), "--no-reload"]
