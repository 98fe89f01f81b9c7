"""A sandbox on this machine: a private folder, a clean environment, limits, and the best available isolation."""

import asyncio
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.tools.output import Output
from osmosis_grpc.tools.process import Program, run_program
from osmosis_grpc.tools.sandbox.files import Files
from osmosis_grpc.tools.sandbox.folder_archive import read_archive, write_archive
from osmosis_grpc.tools.sandbox.folder_size import Measurement
from osmosis_grpc.tools.sandbox.limits import SandboxLimits
from osmosis_grpc.tools.sandbox.methods import METHODS, PATH, Choice, choose
from osmosis_grpc.tools.sandbox.port import (
    FILE_BYTES,
    OUTPUT_BYTES,
    SECONDS,
    FileInfo,
    Isolation,
    Protection,
    RunResult,
    SandboxError,
    SandboxLost,
    check_program,
    protections_of,
)
from osmosis_grpc.tools.uninterrupted import uninterrupted
from osmosis_grpc.tools.workspace import Workspace

log = logging.getLogger(__name__)

MEASURE_EVERY = 0.25
"""Seconds between two measurements of the folder while a program runs. A slow measurement makes it longer."""
CLEANING = 10.0
"""After a program was killed because the folder was full, the next one may take so many seconds to delete files."""
SIGNAL = 128
TIMED_OUT = 137
"""The exit code of a program that the sandbox has killed."""
SNAPSHOT = "snapshot.tar.gz"
SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"

_threads = DaemonThreads(32)
"""The threads that read, write, measure and copy files."""
_warned: set[Isolation] = set()


class LocalSandbox:
    """Runs programs on this machine, isolated as well as possible. Use it as `async with LocalSandbox() as box`.

    See `Sandbox` for the methods, and docs/sandbox.md for the limits of each isolation.

    Args:
        require: The required protections. Without one of them, the sandbox does not start (SandboxRefused).
        limits: The limits of programs.
        environment: Variables besides PATH, HOME, TMPDIR and LANG. The server's variables are not passed on.
        read_only: More folders that programs can read.
        method: "bubblewrap", "namespaces" or "processes"; by default the first of them that works.

    Raises:
        ValueError: An option is invalid.
    """

    def __init__(
        self,
        *,
        require: Collection[Protection | str] = (),
        limits: SandboxLimits | None = None,
        environment: Mapping[str, str] | None = None,
        read_only: Sequence[str | Path] = (),
        method: str = "",
    ) -> None:
        self._required = protections_of(require)
        self._limits = limits or SandboxLimits()
        self._variables = dict(environment or {})
        self._read_only = tuple(Path(path).absolute() for path in read_only)
        for path in self._read_only:
            if not path.is_dir():
                raise ValueError(f"read_only: {path} is not a folder")
        if method not in ("", *(each.name for each in METHODS)):
            raise ValueError(f"method: {method!r} is not one of {', '.join(each.name for each in METHODS)}")
        self._method = method
        self._begins_as: Path | None = None
        self._choice: Choice | None = None
        self._space: Workspace | None = None
        self._files: Files | None = None
        self._running = 0
        self._was_full = False
        """Whether the last program was killed because the folder was full."""
        self._changes = asyncio.Lock()
        """Held while the folder is copied or replaced, and while a program begins or a file changes."""

    @property
    def isolation(self) -> Isolation:
        return self._started()[0].isolation

    @property
    def folder(self) -> str:
        choice, space, _ = self._started()
        return choice.folder(space)

    @property
    def python(self) -> str:
        python = self._started()[0].python
        if not python:
            raise SandboxError("the sandbox has no Python; install python3 below /usr, or give its folder as read_only")
        return python

    async def __aenter__(self) -> Self:
        if self._space is not None:
            raise SandboxError("the sandbox was already started; make a new one")
        try:
            choice = await _threads.run(lambda: choose(self._read_only, self._method))
            choice.isolation.require(self._required, named=bool(self._method))
            _warn(choice.isolation)
            self._choice, self._space = choice, choice.workspace()
            self._files = Files(self._space.work, choice.folder(self._space), self._space.user)
            await uninterrupted(_threads.run(self._make))
        except OSError as error:
            await self.close()
            raise SandboxError(f"the sandbox cannot be started: {error}") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        space, self._files = self._space, None
        if space is not None:
            await uninterrupted(_threads.run(space.remove))

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        seconds: float = SECONDS,
        environment: Mapping[str, str] | None = None,
        cwd: str = ".",
        output_bytes: int = OUTPUT_BYTES,
    ) -> RunResult:
        choice, space, files = self._started()
        argv = [SHELL, "-c", command] if isinstance(command, str) else list(command)
        check_program(argv, environment or {})
        folder = await _threads.run(lambda: files.check_folder(cwd))
        words = choice.command(space, folder, argv, self._limits, self._read_only)
        variables = self._environment(choice, space, environment or {})
        async with self._changes:
            self._running += 1
        try:
            with closing(Output(output_bytes, 0)) as stdout, closing(Output(output_bytes, 0)) as stderr:
                program = Program(words, variables, space, stdout, stderr, cwd=Path("/"))
                end = await run_program(
                    program, stdin=stdin, seconds=seconds, grace=0, give_up=lambda: self._until_full(space)
                )
                await stdout.rest()
                await stderr.rest()
            self._was_full = end.given_up
            return RunResult(
                exit_code=SIGNAL - end.exit_code if end.exit_code < 0 else end.exit_code,
                stdout=stdout.data(),
                stderr=stderr.data(),
                stdout_truncated=stdout.truncated,
                stderr_truncated=stderr.truncated,
                timed_out=end.timed_out,
                disk_full=end.given_up,
                seconds=end.seconds,
            )
        except OSError as error:
            kind = SandboxError if error.errno == errno.E2BIG else SandboxLost  # the model's command is too long
            raise kind(f"the program cannot be started: {error}") from None
        finally:
            self._running -= 1

    async def read_file(self, path: str, *, most_bytes: int = FILE_BYTES) -> bytes:
        files = self._started()[2]
        return await _threads.run(lambda: files.read(path, most_bytes))

    async def write_file(self, path: str, data: bytes, *, most_bytes: int = FILE_BYTES) -> None:
        files = self._started()[2]
        async with self._changes:
            await uninterrupted(_threads.run(lambda: files.write(path, data, most_bytes)))

    async def remove_file(self, path: str) -> None:
        files = self._started()[2]
        async with self._changes:
            await uninterrupted(_threads.run(lambda: files.remove(path)))

    async def list_files(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        files = self._started()[2]
        return await _threads.run(lambda: files.listed(path, depth))

    async def snapshot(self) -> "LocalSnapshot":
        async with self._without_programs() as space:
            kept = Workspace()  # the reaper removes it with this process
            try:
                await uninterrupted(_threads.run(kept.make))
                return LocalSnapshot(self, kept, await self._saved(space, kept.folder / SNAPSHOT, b""))
            except BaseException:
                await uninterrupted(_threads.run(kept.remove))
                raise

    async def save(self, path: Path, note: bytes = b"") -> int:
        """Save the working folder as a file, which outlives the sandbox. Return the bytes of the file.

        restore() of another sandbox restores the folder, and read_note() returns the note. Raises SandboxError as
        snapshot() does.

        Args:
            path: The file.
            note: Kept with the folder.
        """
        async with self._without_programs() as space:
            return await self._saved(space, path, note)

    async def _saved(self, space: Workspace, path: Path, note: bytes) -> int:
        limits = self._limits
        return await uninterrupted(_threads.run(lambda: write_archive(space.work, path, note, limits, of=space.user)))

    async def restore(self, path: Path) -> None:
        """Replace the working folder by the one that save() has written to a file. Raises SandboxError."""
        limits = self._limits
        async with self._without_programs() as space:

            def replace() -> None:
                try:
                    space.clear()
                except OSError as error:
                    raise SandboxError(f"the working folder cannot be replaced: {error}") from None
                read_archive(path, space.work, limits, space.user)

            await uninterrupted(_threads.run(replace))

    def like(self, begins_as: Path) -> "LocalSandbox":
        """Return a new sandbox with the options of this one. Its working folder begins as save() has written it."""
        made = LocalSandbox(
            require=self._required,
            limits=self._limits,
            environment=self._variables,
            read_only=self._read_only,
            method=self._method,
        )
        made._begins_as = begins_as
        return made

    def _started(self) -> tuple[Choice, Workspace, Files]:
        if self._choice is None or self._space is None or self._files is None:
            raise SandboxError("the sandbox is not open; use it within `async with`")
        return self._choice, self._space, self._files

    @asynccontextmanager
    async def _without_programs(self) -> AsyncIterator[Workspace]:
        space = self._started()[1]
        async with self._changes:
            if self._running:
                raise SandboxError("a program runs in the sandbox; wait for its end")
            yield space

    def _make(self) -> None:
        space = self._space
        assert space is not None
        space.make()
        if self._begins_as is not None:
            read_archive(self._begins_as, space.work, self._limits, space.user)

    def _environment(self, choice: Choice, space: Workspace, more: Mapping[str, str]) -> dict[str, str]:
        own = {"PATH": PATH, "HOME": choice.folder(space), "LANG": "C.UTF-8", "TMPDIR": choice.temporary(space)}
        return {**own, **self._variables, **more}

    async def _until_full(self, space: Workspace) -> None:
        folders, limits = (space.work, space.temporary), self._limits
        if self._was_full:  # otherwise no program could delete files in time
            twice = replace(limits, folder_bytes=2 * limits.folder_bytes, folder_files=2 * limits.folder_files)
            with suppress(TimeoutError):
                await asyncio.wait_for(_until_over(Measurement(folders, twice)), CLEANING)
                return
        await _until_over(Measurement(folders, limits))


async def _until_over(measurement: Measurement) -> None:
    pause = MEASURE_EVERY
    while True:
        await asyncio.sleep(pause)
        began = time.monotonic()
        if await _threads.run(measurement.is_full):
            return
        pause = max(MEASURE_EVERY, 4 * (time.monotonic() - began))


class LocalSnapshot:
    """A copy of the working folder of a local sandbox. See `Snapshot`."""

    def __init__(self, sandbox: LocalSandbox, kept: Workspace, size: int) -> None:
        self._sandbox, self._kept = sandbox, kept
        self.bytes = size

    def fork(self) -> LocalSandbox:
        return self._sandbox.like(self._kept.folder / SNAPSHOT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await uninterrupted(_threads.run(self._kept.remove))


def _warn(isolation: Isolation) -> None:
    if isolation.reason and isolation not in _warned:
        _warned.add(isolation)
        log.warning("programs of sandboxes are not fully isolated: %s", isolation)
