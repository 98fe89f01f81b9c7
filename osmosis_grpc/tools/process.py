"""Runs a program in a workspace: with its own process group, a time limit, and the last lines of its output.

At the end of a run, the process group gets SIGTERM, then SIGKILL, and then every process with the workspace's marker in
its environment gets SIGKILL. Only a process that has left the group and cleared its environment survives. The server is
not forked (Python's subprocess uses vfork here).
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_grpc.supervise import DaemonThreads, OnFailure, child, job
from osmosis_grpc.tools import reaper
from osmosis_grpc.tools.output import Output
from osmosis_grpc.tools.uninterrupted import uninterrupted
from osmosis_grpc.tools.workspace import Workspace

log = logging.getLogger(__name__)

RUN = job("tools.run_process", OnFailure.RAISE)

PROGRAMS = 512
"""At most this many programs run at once in a process. Further ones wait."""
KILLED = -signal.SIGKILL
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""

program_threads = DaemonThreads(PROGRAMS)
"""Each thread starts one program and waits until it ends."""
_stopping = DaemonThreads(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run."""

    seconds: float | None = None
    """The program is stopped when it has run for this time. None means no limit."""
    memory: int | None = None
    """The most bytes of address space of each process of the program. None means no limit. Linux only."""
    output_bytes: int = 16 * 1024
    """The most bytes of output that are kept. The newest output is kept."""
    output_lines: int = 40
    """The most lines of output that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a program."""

    exit_code: int
    """The negative number of the signal if a signal has ended the program."""
    output: str
    """The last lines of its standard output and standard error. Control characters are escaped."""
    seconds: float
    """How long it ran."""
    timed_out: bool
    """Whether the time limit has stopped it."""


async def run_process(
    argv: Sequence[str],
    *,
    space: Workspace,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes = b"",
    limits: Limits | None = None,
    secrets: Collection[str] = (),
) -> Ended:
    """Run a program to its end. If the caller is cancelled, the program is stopped first.

    The program has exactly the variables of `environment` and those of the workspace. `cwd` is the folder `work` of the
    workspace unless given. A program that does not read `stdin` blocks nothing. `secrets` are replaced in the output.
    Raises OSError if the program cannot be started.
    """
    limits = limits or Limits()
    output = Output(limits.output_bytes, limits.output_lines, secrets)
    program = _Program(argv, {**environment, **space.environment}, cwd or space.work, space.marker, output.write_end)
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended = child(RUN, program_threads.run(lambda: program.run(stdin, limits.memory), lambda: started.set_result(None)))
    try:
        try:
            first: set[asyncio.Future[Any]] = {started, ended}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)  # the program may wait for a thread
            began = time.monotonic()
            timed_out = not (await asyncio.wait({ended}, timeout=limits.seconds))[0]
        except asyncio.CancelledError:
            await uninterrupted(_stop(program, ended))
            raise
        if timed_out:
            await uninterrupted(_stop(program, ended))
        seconds = time.monotonic() - began
        exit_code = KILLED if ended.cancelled() else ended.result()
        await output.rest()
    finally:
        program.close()
        output.close()
    return Ended(exit_code=exit_code, output=output.text(), seconds=seconds, timed_out=timed_out)


async def _stop(program: "_Program", ended: "asyncio.Task[int]") -> None:
    """End a program. Returns when its processes have ended, and at the latest after about ten seconds."""
    if await _stopping.run(program.terminate):
        await asyncio.wait({ended}, timeout=GRACE)
        if not ended.done():
            await _stopping.run(program.kill)
            await asyncio.wait({ended}, timeout=reaper.KILL_WITHIN)
        if not ended.done():
            log.warning("a program does not end after SIGKILL: %s", program)
    ended.cancel()
    await asyncio.wait({ended})
    if not ended.cancelled():
        ended.exception()  # asyncio would log an exception that nothing reads


class _Program:
    """A program of a run. Its methods block, so they are called on threads."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path, marker: str, output: int
    ) -> None:
        self._argv, self._environment, self._cwd, self._marker = list(argv), dict(environment), cwd, marker
        self._output: int | None = output
        """The descriptor that the program writes to. It is closed here once the program has it."""
        self._lock = threading.Lock()
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        """Set while the process group exists."""

    def __str__(self) -> str:
        return f"{self._argv[0]}, process {self._process and self._process.pid}"

    def run(self, stdin: bytes, memory: int | None) -> int:
        """Start the program, wait until it ends, and return its exit code. Raises OSError.

        All its processes have ended then.
        """
        process = self._start(stdin)
        if process is None:
            return KILLED
        if memory is not None and hasattr(resource, "prlimit"):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (memory, memory))
        if hasattr(os, "waitid"):  # the process id stays in use until process.wait(), so killpg() hits no other process
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        self.kill()
        with self._lock:
            self._process = None
        return process.wait()

    def _start(self, stdin: bytes) -> "subprocess.Popen[bytes] | None":
        """Start the program, unless the run was stopped. The lock makes sure that a stop finds the new process."""
        with self._lock, tempfile.TemporaryFile() as given:
            if self._stopped:
                return None
            given.write(stdin)
            given.seek(0)
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=given,
                    stdout=self._output,
                    stderr=self._output,
                    env=self._environment,
                    cwd=self._cwd,
                    start_new_session=True,
                )
            finally:
                self._close_output()
            return self._process

    def terminate(self) -> bool:
        """Send SIGTERM to the group, or prevent the start. Returns whether there is a process."""
        with self._lock:
            self._stopped = True
            self._signal(signal.SIGTERM)
            if self._process is None:
                self._close_output()
            return self._process is not None

    def kill(self) -> None:
        """Kill the group and every other process of the workspace."""
        with self._lock:
            self._signal(signal.SIGKILL)
        reaper.kill_marked([self._marker])

    def close(self) -> None:
        """Close the output of a program that was never started."""
        with self._lock:
            self._close_output()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _close_output(self) -> None:
        if self._output is not None:
            os.close(self._output)
            self._output = None
