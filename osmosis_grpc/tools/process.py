"""Runs a program in a workspace: with its own process group, a time limit, and the last lines of its output.

At the end of a run, the process group gets SIGTERM, then SIGKILL, and then every process with the program's marker in
its environment gets SIGKILL. A process that has left the group and cleared its environment is killed when no other
program runs in the workspace: then every process of the workspace's own user gets SIGKILL. In a workspace without its
own user, such a process survives. The server is not forked (Python's subprocess uses vfork here).
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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_grpc.supervise import DaemonThreads, OnFailure, child, job
from osmosis_grpc.tools import reaper
from osmosis_grpc.tools.output import Output
from osmosis_grpc.tools.program_caches import without_caches
from osmosis_grpc.tools.uninterrupted import uninterrupted
from osmosis_grpc.tools.workspace import Workspace, kill_marked

log = logging.getLogger(__name__)

RUN = job("tools.run_process", OnFailure.RAISE)
WATCH = job("tools.watch_program", OnFailure.RAISE)

PROGRAMS = 2048
"""At most this many programs of a process run at once. Others wait."""
KILLED = -signal.SIGKILL
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""

program_threads = DaemonThreads(PROGRAMS)
"""Each thread starts one program and waits until it ends."""
_stopping = DaemonThreads(16)
_starts = threading.BoundedSemaphore(4)
"""Held while a program starts. Several starts at once would block the event loop, and would not be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run."""

    seconds: float | None = None
    """The time limit of the program, in seconds. None means no limit."""
    memory: int | None = None
    """The limit of address space of each process of the program, in bytes. None means no limit. Linux only."""
    output_bytes: int = 16 * 1024
    """Only this many bytes at the end of the output are kept."""
    output_lines: int = 40
    """Only this many lines at the end of the output are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a program."""

    exit_code: int
    """The negative number of the signal if a signal has ended the program."""
    seconds: float
    """How long it ran."""
    timed_out: bool = False
    """Whether the time limit stopped the program."""
    given_up: bool = False
    """Whether the function `give_up` of run_program() stopped the program."""
    output: str = ""
    """The last lines of the output, with control characters escaped. Only run_process() sets it."""


async def run_process(
    argv: Sequence[str],
    *,
    space: Workspace,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes = b"",
    limits: Limits | None = None,
    secrets: Collection[str] = (),
    give_up: Callable[[], Awaitable[Any]] | None = None,
) -> Ended:
    """Run a program to its end. If the caller is cancelled, the program is stopped first.

    The program has exactly the variables of `environment`, of the workspace and of program_caches.py. `cwd` is by
    default the folder `work` of the workspace. If the program does not read `stdin`, nothing blocks. `secrets` are
    replaced in the output. The program is stopped when `give_up` returns. Raises OSError if the program cannot be
    started.
    """
    limits = limits or Limits()
    output = Output(limits.output_bytes, limits.output_lines, secrets)
    try:
        variables = {**environment, **space.environment}
        program = Program(argv, variables, space, output, output, cwd=cwd or space.work, memory=limits.memory)
        end = await run_program(program, stdin=stdin, seconds=limits.seconds, give_up=give_up)
        await output.rest()
    finally:
        output.close()
    return replace(end, output=output.text())


async def run_program(
    program: "Program",
    *,
    stdin: bytes = b"",
    seconds: float | None = None,
    grace: float = GRACE,
    give_up: Callable[[], Awaitable[Any]] | None = None,
) -> Ended:
    """Run a program to its end. If the caller is cancelled, the program is stopped first.

    The program is also stopped after `seconds`, and when `give_up` returns. `grace` is the time between SIGTERM and
    SIGKILL; 0 means no SIGTERM. Raises OSError if the program cannot be started, and the error of `give_up`.
    """
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended = child(RUN, program_threads.run(lambda: program.run(stdin), lambda: started.set_result(None)))
    watch: asyncio.Task[None] | None = None
    try:
        try:
            first: set[asyncio.Future[Any]] = {started, ended}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)  # the program may wait for a thread
            began = time.monotonic()
            watched: set[asyncio.Future[Any]] = {ended}
            if give_up is not None:
                watch = child(WATCH, _awaited(give_up))
                watched.add(watch)
            done, _ = await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await uninterrupted(_stop(program, ended, grace))
            raise
        if ended not in done:
            await uninterrupted(_stop(program, ended, grace))
        if watch is not None and watch in done:
            watch.result()  # raises the error of give_up
        exit_code = KILLED if ended.cancelled() else ended.result()
        given_up = watch is not None and watch in done and ended not in done
        return Ended(exit_code=exit_code, seconds=time.monotonic() - began, timed_out=not done, given_up=given_up)
    finally:
        if watch is not None:
            watch.cancel()
        program.close()


async def _awaited(function: Callable[[], Awaitable[Any]]) -> None:
    await function()


async def _stop(program: "Program", ended: "asyncio.Task[int]", grace: float) -> None:
    """End a program. Returns when its processes have ended, and at the latest after about ten seconds."""
    if await _stopping.run(lambda: program.terminate(signal.SIGTERM if grace else signal.SIGKILL)):
        if grace:
            await asyncio.wait({ended}, timeout=grace)
        if not ended.done():
            await _stopping.run(program.kill)
            await asyncio.wait({ended}, timeout=reaper.KILL_WITHIN)
        if not ended.done():
            log.warning("a program does not end after SIGKILL: %s", program)
    ended.cancel()
    await asyncio.wait({ended})
    if not ended.cancelled():
        ended.exception()  # asyncio would log an exception that nothing reads


class Program:
    """A program of a run, and the outputs that it writes to. Its methods block, so they are called on threads.

    `environment` has all its variables but the marker and those of program_caches.py.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        space: Workspace,
        stdout: Output,
        stderr: Output,
        *,
        cwd: Path,
        memory: int | None = None,
    ) -> None:
        self._argv, self._cwd = list(argv), cwd
        self._environment = without_caches(environment, reaper.MARKER)
        self._space, self._memory = space, memory
        self._stdout = stdout.take_write_end()
        self._stderr = self._stdout if stderr is stdout else stderr.take_write_end()
        self._outputs = {self._stdout, self._stderr}
        """The descriptors that the program writes to. They are closed here once the program has them."""
        self._lock = threading.Lock()
        self._stopped = False
        self._marker = ""
        """The value of the variable MARKER of its processes."""
        self._process: subprocess.Popen[bytes] | None = None
        """Set while the process group exists."""

    def __str__(self) -> str:
        return f"{self._argv[0]}, process {self._process and self._process.pid}"

    def run(self, stdin: bytes) -> int:
        """Start the program, wait until it ends, and return its exit code. Raises OSError.

        All its processes have ended then.
        """
        self._marker = self._space.begin_program()
        try:
            process = self._start(stdin)
            if process is None:
                return KILLED
            if self._memory is not None and hasattr(resource, "prlimit"):
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (self._memory, self._memory))
            if hasattr(
                os, "waitid"
            ):  # the process id stays in use until process.wait(), so killpg() cannot hit another process
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            else:
                process.wait()
            with self._lock:
                self._signal(signal.SIGKILL)
        finally:
            self._space.end_program(self._marker)
        with self._lock:
            self._process = None
        return process.wait()

    def _start(self, stdin: bytes) -> "subprocess.Popen[bytes] | None":
        """Start the program, unless the run was stopped. With the lock, a stop always finds the new process."""
        with _starts, self._lock, tempfile.TemporaryFile() as given:
            if self._stopped:
                return None
            given.write(stdin)
            given.seek(0)
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=given,
                    stdout=self._stdout,
                    stderr=self._stderr,
                    env={**self._environment, reaper.MARKER: self._marker},
                    cwd=self._cwd,
                    start_new_session=True,
                )
            finally:
                self._close_output()
            return self._process

    def terminate(self, number: signal.Signals) -> bool:
        """Send a signal to the group, or prevent the start. Return whether there is a process."""
        with self._lock:
            self._stopped = True
            self._signal(number)
            if self._process is None:
                self._close_output()
            return self._process is not None

    def kill(self) -> None:
        """Kill the group and every other process with the marker of the program."""
        with self._lock:
            self._signal(signal.SIGKILL)
        kill_marked({self._marker: None})

    def close(self) -> None:
        """Close the output of a program that was never started."""
        with self._lock:
            self._close_output()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _close_output(self) -> None:
        while self._outputs:
            os.close(self._outputs.pop())
