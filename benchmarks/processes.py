"""Starts the measured process on a separate core, reads its use of resources, and stops it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, progress

ROOT = Path(__file__).parent.parent
BASELINES = ("sdk", "tuned")
CORES = tuple(sorted(os.sched_getaffinity(0)))
"""The cores of this process at its start."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready."""

    pid: int
    grpc: str
    """HOST:PORT; empty without gRPC."""
    http: str
    workers: tuple[int, ...] = ()
    """The processes of its workers, if it has several. Then `pid` is their supervisor."""

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes of the server."""
        return (self.pid, *self.workers)

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all processes so far, user and system."""
        return sum(_cpu_seconds(pid) for pid in self.pids)

    @property
    def peak_rss_mb(self) -> float:
        """The sum of the peak memory of all processes, in MB of 1,000,000 bytes."""
        return sum(self.peaks_mb)

    @property
    def peaks_mb(self) -> list[float]:
        """The peak memory of each process, in the order of `pids`."""
        return [_peak_rss_mb(pid) for pid in self.pids]

    @property
    def shared_once_mb(self) -> float:
        """The memory now, in MB, in which files that all processes have in memory, such as libraries, count once.

        It is the sum of the anonymous memory of all processes, and the largest file memory of a process.
        """
        anonymous = sum(_now_mb(pid, "RssAnon") for pid in self.pids)
        return anonymous + max(_now_mb(pid, "RssFile") for pid in self.pids)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_rss_mb(pid: int) -> float:
    return _now_mb(pid, "VmHWM")


def _now_mb(pid: int, name: str) -> float:
    """Return a row of /proc/PID/status in MB."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(row.split()[1] for row in rows if row.startswith(f"{name}:"))) * 1024 / 1e6


def serve_command(max_concurrent: int, more: Sequence[str] = (), *, http: bool = False) -> list[str]:
    """Return the command line of the real server with the benchmarks' agent."""
    return [
        "osmosis_grpc.serve",
        "-m",
        "benchmarks.work:agent_loop",
        "--grpc-port",
        "0",
        "--no-validate",
        *(("-p", "0") if http else ("--no-http",)),
        "--log-level",
        "error",
        "--drain-timeout",
        "0",
        "--max-concurrent",
        str(max_concurrent),
        "--json",
        *more,
    ]


@contextmanager
def server(mode: str, max_concurrent: int, more: Sequence[str] = (), profile: Path | None = None) -> Iterator[Server]:
    """Start the server of a mode in a separate process and folder. This process takes the other core."""
    command = serve_command(max_concurrent, more, http=mode == "http")
    if mode in BASELINES:
        command = ["benchmarks.http_baseline", "--mode", mode, "--port", "0"]
    profiled = ["cProfile", "-o", str(profile.resolve()), "-m"] if profile else []
    limits = {"MAX_CONNECTIONS", "MAX_KEEPALIVE_CONNECTIONS"}  # of the HTTP gateway towards trainers
    settings = {f"OSMOSIS_ROLLOUT_CLIENT_{name}": str(max_concurrent) for name in limits}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(["-m", *profiled, *command], core=0, folder=folder, environment=settings) as process,
    ):
        take_core(1)
        ready = ready_record(process)
        yield server_of(process.pid, ready)
        if process.poll() is not None:
            raise Broken(f"the server ended by itself with code {process.returncode}")


def server_of(pid: int, ready: Mapping[str, Any]) -> Server:
    """Return the server whose `ready` record this is."""
    workers = tuple(row["pid"] for row in ready.get("workers", ()))
    return Server(pid, ready.get("grpc", ""), ready.get("http", ""), workers)


@contextmanager
def running(
    arguments: Sequence[str],
    *,
    core: int | None,
    folder: str | Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """Start Python with these arguments on the given core, or on all, with pipes for stdin and stdout.

    When the context exits, it ends the process. After 60 s it kills the process.
    """
    before = os.sched_getaffinity(0)
    if core is not None:
        take_core(core)  # inherited, so that every thread of the child has it
    try:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment_with(environment or {}),
        )
    finally:
        os.sched_setaffinity(0, before)
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a process that imports from the repository."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_program(name: str, *arguments: object) -> dict[str, Any]:
    """Return the figures of `python -m benchmarks.NAME ARGUMENTS --json`, run in a separate process.

    A run that fails gives {"missing": "failed"}. Its stderr is shown and has the reason.
    """
    command = ["-m", f"benchmarks.{name}", *map(str, arguments), "--json"]
    progress(" ".join(command[1:-1]))
    ran = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    figures: dict[str, Any] = {"missing": "failed"} if ran.returncode else json.loads(ran.stdout)
    return figures


def take_core(number: int) -> None:
    """Bind this process to one core."""
    os.sched_setaffinity(0, {CORES[number % len(CORES)]})


def ready_record(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the first line of a process. Raises Broken if it ends without one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Broken(f"{process.args!r} did not start")
    record: dict[str, Any] = json.loads(line)
    return record
