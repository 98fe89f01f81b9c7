"""A sandbox in its own container: runs programs there, and reads and writes files."""

import asyncio
import posixpath
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from osmosis_grpc.supervise import SYSTEM, OnFailure, child, job
from osmosis_grpc.tools.containers import scripts
from osmosis_grpc.tools.containers.archive import Archive
from osmosis_grpc.tools.containers.execution import STDERR, STDOUT, Sink, Stream, StreamBroken, Tail, talk
from osmosis_grpc.tools.program_caches import PYTEST, without_caches
from osmosis_grpc.tools.sandbox.port import (
    FILE_BYTES,
    LISTED,
    OUTPUT_BYTES,
    SECONDS,
    FileInfo,
    Isolation,
    Protection,
    RunResult,
    SandboxError,
    SandboxFileError,
    SandboxLost,
    check_program,
    protections_of,
)
from osmosis_grpc.tools.uninterrupted import uninterrupted

RUN = job("tools.run_in_container", OnFailure.RAISE)

GUARD = 5
"""If the server dies, a program ends this many seconds after its time limit."""
KILL_WITHIN = 5.0
"""If a killed program does not end within this many seconds, it is killed again. At last, its container is deleted."""
KILLS = 3
TIMED_OUT = 137
FILE_SECONDS = 60.0
PACK_SECONDS = 600.0
LIST_BYTES = 32 * 1024 * 1024
SAID = 300
"""An error message shows at most this many characters of a program's standard error."""


class ContainerConfig(Protocol):
    """The fields of a container's configuration that a sandbox uses."""

    @property
    def folder(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def snapshot_bytes(self) -> int: ...
    @property
    def isolation(self) -> Isolation: ...


class Containers(Protocol):
    """The part of a machine that a sandbox uses: a Kubernetes cluster, or a Docker daemon."""

    async def delete(self, name: str) -> None: ...
    async def why_ended(self, name: str) -> str: ...
    def stream(self, name: str, argv: list[str]) -> AbstractAsyncContextManager[Stream]: ...


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs."""

    name: str
    folder: str
    """Its working folder."""


class ContainerSandbox:
    """Runs programs in a container. See `Sandbox` for the methods.

    KubernetesCluster.sandbox() and DockerMachine.sandbox() make it. The time limit of a program includes the time to
    reach the container. If the stream to it breaks, the program is killed, and run() raises SandboxError.
    """

    def __init__(
        self,
        machine: Containers,
        config: ContainerConfig,
        start: Callable[[], Awaitable[Started]],
        require: Collection[Protection | str],
        content: Archive | None = None,
    ) -> None:
        self._machine = machine
        self._config = config
        self._start = start
        self._require = protections_of(require)
        self.name = ""
        """The name of the container, or of its pod. Known within the `async with`."""
        self._folder = config.folder
        self._content = content
        self._running = 0
        self._changes = asyncio.Lock()
        """Held while a snapshot copies the folder, and while a program begins or a file changes."""
        self._state = "not started"

    @property
    def isolation(self) -> Isolation:
        return self._config.isolation

    @property
    def folder(self) -> str:
        return self._folder.rstrip("/")

    @property
    def python(self) -> str:
        """The Python interpreter of the image. Raises SandboxError if it has none."""
        if not self._config.python:
            raise SandboxError("python: is empty in the configuration, so there is no Python in the container")
        return self._config.python

    async def __aenter__(self) -> Self:
        self.isolation.require(self._require)
        if self._state != "not started":
            raise SandboxError(f"the sandbox is {self._state}; make a new one")
        self._state = "open"
        try:
            started = await self._start()
            self.name, self._folder = started.name, started.folder
            if self._content is not None:
                await self._unpack(self._content, self.folder, scripts.REPLACE)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Delete the container, and with it every program and file. Idempotent."""
        if self._state == "open":
            self._state = "closed"
            if self.name:
                await uninterrupted(self._machine.delete(self.name))

    # Programs.

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
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        given = dict(environment or {})
        if PYTEST in given:  # if not given, the script in the container keeps the options of the image
            given = without_caches(given, scripts.MARK)
        check_program(argv, given)
        if "=" in argv[0]:  # env would read it as a variable
            argv = ["sh", "-c", 'exec "$@"', "sh", *argv]
        variables = [f"{name}={value}" for name, value in given.items()]
        script = shlex.join([self.folder or "/", self._relative(cwd), *variables, *argv])
        text = script.encode(errors="surrogateescape")
        mark = SYSTEM.new_id()
        limit = str(int(seconds) + GUARD)
        fixed = ["sh", "-c", scripts.RUN, "sh", mark, limit, str(len(text)), str(len(stdin))]
        out, err = Tail(output_bytes), Tail(output_bytes)
        began = SYSTEM.monotonic()
        exit_code, timed_out = await self._watched(mark, seconds, fixed, text + stdin, out, err)
        if exit_code == 125 and err.data() == f"{mark}\n".encode():
            raise SandboxFileError(f"{cwd}: is not a folder")
        return RunResult(
            exit_code=TIMED_OUT if timed_out else exit_code,
            stdout=out.data(),
            stderr=err.data(),
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
            timed_out=timed_out,
            seconds=SYSTEM.monotonic() - began,
        )

    async def _watched(
        self, mark: str, seconds: float, argv: list[str], stdin: bytes, out: Tail, err: Tail
    ) -> tuple[int, bool]:
        """Run a marked program, and kill it at its time limit. Return its exit code, and whether it was killed."""
        async with self._changes:
            self._running += 1
        started = asyncio.Event()
        work = child(RUN, self._exec(argv, _once(stdin), out.write, err.write, started))
        try:
            await asyncio.wait({work}, timeout=seconds)
            timed_out = not work.done()
            if timed_out:
                await uninterrupted(self._kill(mark, work))
                if not started.is_set():
                    raise SandboxLost(f"container {self.name} was not reached within {seconds:g} s")
            try:
                return work.result(), timed_out
            except (asyncio.CancelledError, StreamBroken) as error:
                if timed_out:
                    return TIMED_OUT, True
                await uninterrupted(self._kill(mark, work))
                why = await self._machine.why_ended(self.name)
                raise (SandboxLost if why else SandboxError)(
                    f"{error}; the program was killed{f'; the container has ended: {why}' if why else ''}"
                ) from None
        except asyncio.CancelledError:
            await uninterrupted(self._kill(mark, work))
            raise
        finally:
            self._running -= 1

    async def _kill(self, mark: str, work: "asyncio.Task[int]") -> None:
        """Kill a marked program in the container, and wait until it has ended. If that fails, delete the container."""
        killed = False
        for _ in range(KILLS):
            try:
                async with asyncio.timeout(FILE_SECONDS):
                    await self._exec(["sh", "-c", scripts.SWEEP, "sh", mark], _once(b""), _nowhere, _nowhere)
                killed = True
            except (SandboxError, TimeoutError):
                killed = False
            await asyncio.wait({work}, timeout=KILL_WITHIN if killed else 0)
            if killed and work.done():
                return
        await self.close()
        work.cancel()
        await asyncio.wait({work})

    async def _exec(
        self, argv: list[str], stdin: AsyncIterator[bytes], out: Sink, err: Sink, started: asyncio.Event | None = None
    ) -> int:
        if self._state != "open":
            raise SandboxLost(f"the sandbox is {self._state}; use it within its `async with`")
        async with self._machine.stream(self.name, argv) as socket:
            if started is not None:
                started.set()
            return await talk(socket, stdin, {STDOUT: out, STDERR: err})

    # Files.

    async def read_file(self, path: str, *, most_bytes: int = FILE_BYTES) -> bytes:
        return await self._script(scripts.READ, path, str(most_bytes), most=most_bytes)

    async def write_file(self, path: str, data: bytes, *, most_bytes: int = FILE_BYTES) -> None:
        if len(data) > most_bytes:
            raise SandboxFileError(f"{path}: has {len(data)} bytes, and the limit is {most_bytes}")
        async with self._changes:
            await self._script(scripts.WRITE, path, str(len(data)), SYSTEM.new_id(), stdin=data)

    async def remove_file(self, path: str) -> None:
        async with self._changes:
            await self._script(scripts.REMOVE, path)

    async def list_files(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        listed = await self._script(scripts.LIST, path, str(depth), most=LIST_BYTES)
        found = []
        for row in listed.split(b"\0")[:-1]:
            kind, size, name = row.decode(errors="surrogateescape").split(" ", 2)
            found.append(FileInfo(posixpath.normpath(name), kind == "d", int(size)))
        return sorted(found, key=lambda info: info.path)[:LISTED]

    async def _script(self, script: str, path: str, *more: str, stdin: bytes = b"", most: int = 4096) -> bytes:
        relative = self._relative(path)
        out, err = Tail(most), Tail(4096)
        argv = ["sh", "-c", script, "sh", self.folder, relative, *more]
        try:
            async with asyncio.timeout(FILE_SECONDS):
                code = await self._exec(argv, _once(stdin), out.write, err.write)
        except TimeoutError:
            raise SandboxLost(f"{path}: the container did not answer within {FILE_SECONDS:g} s") from None
        if code in scripts.WRONG:
            raise SandboxFileError(f"{path}: {scripts.WRONG[code]}")
        if code:
            raise SandboxFileError(f"{path}: exit code {code}: {err.data().decode(errors='replace').strip()[:SAID]}")
        if out.truncated:
            raise SandboxFileError(f"{path}: is too large")
        return out.data()

    def _relative(self, path: str) -> str:
        try:
            path.encode()
        except UnicodeEncodeError:  # the arguments of an exec are JSON, or a URL
            raise SandboxFileError(f"{path!r}: is no text in UTF-8, as the paths of a container have to be") from None
        if "\0" in path:
            raise SandboxFileError(f"{path!r}: is no path")
        whole = posixpath.normpath(posixpath.join(self.folder, path))
        if whole != self.folder and not whole.startswith(f"{self.folder}/"):
            raise SandboxFileError(f"{path}: is outside of the working folder {self.folder}")
        return posixpath.relpath(whole, self.folder)

    # Folders.

    async def snapshot(self) -> "ContainerSnapshot":
        """Copy the working folder to a temporary file of this machine, as a tar archive."""
        async with self._changes:
            if self._running:
                raise SandboxError("snapshot: a program runs; wait until it has ended")
            return ContainerSnapshot(await self._pack(self.folder), self._fork)

    def _fork(self, content: Archive) -> "ContainerSandbox":
        return ContainerSandbox(self._machine, self._config, self._start, self._require, content)

    async def upload(self, local: Path, path: str) -> None:
        """Copy a folder of this machine into the container. Its files belong to the user of the programs there.

        Args:
            local: The folder on this machine.
            path: An absolute path of the container, which is created. Existing files stay unless they are replaced.

        Raises:
            SandboxError: The folder cannot be read, or the path cannot be written.
        """
        async with Archive(self._config.snapshot_bytes) as content:
            await content.fill(local)
            async with self._changes:
                await self._unpack(content, self._absolute(path))

    async def download(self, path: str, local: Path) -> None:
        """Copy a folder of the container to this machine. Links and special files are left out.

        Args:
            path: An absolute path of the container.
            local: The folder on this machine, which is created.

        Raises:
            SandboxError: There is no such folder, or it has more than `snapshot_bytes`.
        """
        async with await self._pack(self._absolute(path)) as content:
            await content.extract(local)

    def _absolute(self, path: str) -> str:
        if not path.startswith("/") or "\0" in path:
            raise SandboxFileError(f"{path!r}: is no absolute path")
        return path

    async def _pack(self, folder: str) -> Archive:
        made = Archive(self._config.snapshot_bytes)
        try:
            await self._tar(["sh", "-c", scripts.PACK, "sh", folder], _once(b""), made.write)
        except BaseException:
            await made.close()
            raise
        return made

    async def _unpack(self, content: Archive, folder: str, script: str = scripts.UNPACK) -> None:
        await self._tar(["sh", "-c", script, "sh", folder, str(content.bytes)], content.read(), _nowhere)

    async def _tar(self, argv: list[str], stdin: AsyncIterator[bytes], out: Sink) -> None:
        err, folder = Tail(4096), argv[4]
        try:
            async with asyncio.timeout(PACK_SECONDS):
                code = await self._exec(argv, stdin, out, err.write)
        except TimeoutError:
            raise SandboxLost(f"{folder}: tar did not end within {PACK_SECONDS:g} s") from None
        if code:
            raise SandboxError(f"{folder}: tar ended with {code}: {err.data().decode(errors='replace')[:SAID]}")


class ContainerSnapshot:
    """A copy of a container's working folder. ContainerSandbox.snapshot() makes it. Used as `async with`."""

    def __init__(self, content: Archive, fork: Callable[[Archive], ContainerSandbox]) -> None:
        self._content = content
        self._fork = fork

    @property
    def bytes(self) -> int:
        """The bytes of the archive."""
        return self._content.bytes

    def fork(self) -> ContainerSandbox:
        """Return a new sandbox, not started, whose working folder begins as this copy."""
        return self._fork(self._content)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the copy. Does nothing the second time."""
        await self._content.close()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data


async def _nowhere(data: bytes) -> None:
    pass
