"""--reload: the server in a child process, started again when a Python file changes."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from osmosis_grpc.errors import MissingExtraError


def run_reloading() -> int:
    """Run the same command line without --reload, again and again. Returns the last exit code.

    Every start is a new process, made by spawn: a forked one would inherit gRPC's threads.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise MissingExtraError("--reload", "server") from None
    command = [sys.executable, "-m", "osmosis_grpc.serve", *_arguments(sys.argv[1:])]
    over = threading.Event()
    child = subprocess.Popen(command)

    def stop(number: int, frame: object) -> None:
        over.set()
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for changes in watch(Path.cwd(), watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
        names = ", ".join(sorted({Path(path).name for _, path in changes}))
        print(f"{names} changed; starting again", file=sys.stderr)  # noqa: T201
        child.terminate()
        child.wait()
        if over.is_set():
            break
        child = subprocess.Popen(command)
    return child.wait()


def _arguments(given: list[str]) -> list[str]:
    """The arguments without --reload, whatever its variable says, and without the command's name in front."""
    kept = [argument for argument in given if argument != "--reload"]
    return [*(kept[1:] if kept[:1] == ["serve"] else kept), "--no-reload"]
