"""Real processes for tests: a server that says when it is ready."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def server_process(*arguments: str, cwd: Path = ROOT, **options) -> Iterator[tuple[subprocess.Popen, str]]:
    """`python -m osmosis_grpc.serve ... --json` on a free port: the process and its HOST:PORT."""
    with serving(*arguments, cwd=cwd, **options) as (process, ready):
        yield process, ready["grpc"]


@contextlib.contextmanager
def serving(
    *arguments: str, cwd: Path = ROOT, before: Sequence[str] = (), **options
) -> Iterator[tuple[subprocess.Popen, dict]]:
    """The same: the process and its ready record. No HTTP unless `-p` is among the arguments.

    `before` is a command that starts the command line.
    """
    http = [] if "-p" in arguments else ["--no-http"]
    command = [*before, sys.executable, "-m", "osmosis_grpc.serve", "--grpc-port", "0", *http, "--json", *arguments]
    options.setdefault("stderr", subprocess.PIPE)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, **options)
    with process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


def run(*arguments: str, cwd: Path = ROOT, timeout: float = 50, **options) -> subprocess.CompletedProcess:
    """A Python command line to its end."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=timeout, check=False, **options
    )
