"""Places where the program of a rollout runs: a folder of this machine, or a container of its own, called a box."""

import asyncio
import dataclasses
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.supervise import SYSTEM, OnFailure, child, job
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from osmosis_grpc.tools.output import last_lines
from osmosis_grpc.tools.process import Ended, Limits, run_process
from osmosis_grpc.tools.sandbox import SandboxFileError
from osmosis_grpc.tools.sandbox.files import Files
from osmosis_grpc.tools.tasks import HarborTask, TaskBoxes, Verdict
from osmosis_grpc.tools.workspace import Workspace

RUN = job("gateway.program_in_box", OnFailure.RAISE)

RESULT_FILE = "result.json"
MAX_RESULT_BYTES = 4 * 1024 * 1024
"""The most bytes of a result file."""
PRIVATE = "/tmp/osmosis"  # noqa: S108 - the /tmp of a container
"""The folder of a box that contains the task and the HOME of the program."""
SCRIPTS = f"{PRIVATE}/scripts"
"""The folder of a box for copies of the files that the setup and reward commands name."""


class Place(Protocol):
    """Where the program of one rollout runs. All paths are as the program sees them."""

    @property
    def folder(self) -> str:
        """The folder with the task and the result file, apart from `work`."""

    @property
    def work(self) -> str:
        """The folder in which the program works."""

    async def write(self, files: Mapping[str, str | None]) -> None:
        """Write files below `folder` or `work`. A path with None becomes a folder. Raises OSError, SandboxError."""

    async def run(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes,
        limits: Limits,
        secrets: Collection[str],
        give_up: Callable[[], Awaitable[Any]] | None,
    ) -> Ended:
        """Run a command in `work`, as run_process() does. Raises OSError, SandboxError."""

    async def with_files(self, words: Sequence[str], folder: Path) -> list[str]:
        """Return the words of a server's command for this place. Copy the files that the words name into the box.

        Args:
            words: The words of the command.
            folder: The folder for relative paths, on this machine.

        Raises:
            OSError, SandboxError: A file cannot be copied.
        """

    async def result(self) -> bytes | None:
        """Return the content of the result file, or None. Raises OSError, SandboxError."""

    async def has_result(self) -> bool:
        """Return whether anything exists at the path of the result file. Raises SandboxError."""

    async def remove_result(self) -> None:
        """Remove whatever exists at the path of the result file. Raises OSError, SandboxError."""

    def for_reward(self) -> AbstractAsyncContextManager["Place"]:
        """Return a place for the reward command without processes of the program. Raises SandboxError."""


class LocalPlace:
    """A folder of this machine, removed with its workspace."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    @property
    def folder(self) -> str:
        return str(self._space.folder)

    @property
    def work(self) -> str:
        return str(self._space.work)

    async def write(self, files: Mapping[str, str | None]) -> None:
        await SYSTEM.run(_write, self._space.folder, files)

    async def run(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes,
        limits: Limits,
        secrets: Collection[str],
        give_up: Callable[[], Awaitable[Any]] | None,
    ) -> Ended:
        return await run_process(
            words,
            space=self._space,
            environment=environment,
            stdin=stdin,
            limits=limits,
            secrets=secrets,
            give_up=give_up,
        )

    async def with_files(self, words: Sequence[str], folder: Path) -> list[str]:
        return list(words)

    async def result(self) -> bytes | None:
        return await SYSTEM.run(_result_file, self._space.folder)

    async def has_result(self) -> bool:
        return await SYSTEM.run(os.path.lexists, self._space.folder / RESULT_FILE)

    async def remove_result(self) -> None:
        await SYSTEM.run(_remove_result, self._space.folder)

    @asynccontextmanager
    async def for_reward(self) -> AsyncIterator[Place]:
        yield self


class BoxPlace:
    """A container that exists for one rollout."""

    def __init__(self, box: ContainerSandbox, most_seconds: float) -> None:
        self._box = box
        self._most_seconds = most_seconds
        self._task: dict[str, str | None] = {}
        """The files of the first write(), which make up the task."""

    @property
    def folder(self) -> str:
        return PRIVATE

    @property
    def work(self) -> str:
        return self._box.folder

    async def write(self, files: Mapping[str, str | None]) -> None:
        self._task = self._task or dict(files)
        with tempfile.TemporaryDirectory(prefix="osmosis-") as made:
            below: dict[str, dict[str, str | None]] = {self.work: {}, self.folder: {}}
            for name, text in files.items():
                whole = name if name.startswith("/") else f"{self.folder}/{name}"
                root = next((root for root in below if whole.startswith(f"{root.rstrip('/')}/")), None)
                if root is None:
                    raise SandboxFileError(f"{name}: is neither below {self.folder} nor below {self.work}")
                below[root][whole[len(root.rstrip("/")) + 1 :]] = text
            for number, (root, own) in enumerate(below.items()):
                if own:
                    local = Path(made) / str(number)
                    await SYSTEM.run(_write, local, own)
                    await self._box.upload(local, root)

    async def run(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes,
        limits: Limits,
        secrets: Collection[str],
        give_up: Callable[[], Awaitable[Any]] | None,
    ) -> Ended:
        began, longest = SYSTEM.monotonic(), max(map(len, secrets), default=0)
        seconds = min(limits.seconds or self._most_seconds, self._most_seconds)
        # Merge stderr into stdout, so that the last lines of both are reported in order.
        command = ["sh", "-c", 'exec "$@" 2>&1', "sh", *words]
        running = child(
            RUN,
            self._box.run(
                command,
                stdin=stdin,
                seconds=seconds,
                environment=environment,
                output_bytes=limits.output_bytes + longest,
            ),
        )
        waiting = {running} if give_up is None else {running, child(RUN, _awaited(give_up))}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            given_up = not running.done()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        if given_up:
            return Ended(exit_code=-9, seconds=SYSTEM.monotonic() - began, given_up=True)
        ended = running.result()
        kept = ended.stdout
        for secret in secrets:
            kept = kept.replace(secret.encode(), b"[key]")
        kept, cut = kept[-limits.output_bytes :], ended.stdout_truncated or len(kept) > limits.output_bytes
        text = last_lines(kept, limits.output_bytes, limits.output_lines, cut=cut)
        return Ended(exit_code=ended.exit_code, seconds=ended.seconds, timed_out=ended.timed_out, output=text)

    async def with_files(self, words: Sequence[str], folder: Path) -> list[str]:
        named = [str(folder / word) if _is_relative_file(folder, word) else "" for word in words]
        with tempfile.TemporaryDirectory(prefix="osmosis-") as made:
            for number, path in enumerate(named):
                if path:
                    (Path(made) / str(number)).mkdir()
                    await SYSTEM.run(shutil.copy, path, f"{made}/{number}/{Path(path).name}")
            if any(named):
                await self._box.upload(Path(made), SCRIPTS)
        pairs = zip(named, words, strict=True)
        return [f"{SCRIPTS}/{at}/{Path(path).name}" if path else word for at, (path, word) in enumerate(pairs)]

    async def result(self) -> bytes | None:
        path = f"{PRIVATE}/{RESULT_FILE}"
        script = f'[ -e "$1" ] || exit 3; [ -f "$1" ] && [ ! -L "$1" ] && exec head -c {MAX_RESULT_BYTES + 1} "$1"'
        read = await self._box.run(["sh", "-c", script, "sh", path], output_bytes=MAX_RESULT_BYTES + 1)
        if read.exit_code == 3:
            return None
        if read.exit_code or len(read.stdout) > MAX_RESULT_BYTES:
            raise SandboxFileError(f"{RESULT_FILE}: is not a plain file of at most {MAX_RESULT_BYTES} bytes")
        return read.stdout

    async def has_result(self) -> bool:
        tested = await self._box.run(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ]', "sh", f"{PRIVATE}/{RESULT_FILE}"])
        return tested.exit_code == 0

    async def remove_result(self) -> None:
        await self._box.run(["rm", "-rf", f"{PRIVATE}/{RESULT_FILE}"])

    @asynccontextmanager
    async def for_reward(self) -> AsyncIterator[Place]:
        """Yield a new box with a copy of the working folder."""
        async with await self._box.snapshot() as copy:
            await self._box.close()  # a rollout has one box at a time
            async with copy.fork() as fresh:
                place = BoxPlace(fresh, self._most_seconds)
                await place.write(self._task)
                yield place


class TaskPlace(BoxPlace):
    """The box of a task, whose tests give the reward."""

    def __init__(self, boxes: TaskBoxes, task: HarborTask, box: ContainerSandbox, most_seconds: float) -> None:
        super().__init__(box, most_seconds)
        self.task = task
        self._boxes = boxes

    async def verdict(self) -> Verdict:
        """Run the tests in a new box. Raises SandboxError."""
        return await self._boxes.verify(self.task, self._box)


@asynccontextmanager
async def place_of(
    machine: DockerMachine | None, request: RolloutRequest, tasks: TaskBoxes | None = None
) -> AsyncIterator[Place]:
    """Yield a new place for a rollout.

    Args:
        machine: Makes the box; None for a folder of this machine.
        request: The request. Its metadata names the task.
        tasks: Provides the boxes of tasks.

    Raises:
        OSError, SandboxError: The place cannot be made.
        InvalidArgument: There is no such task.
    """
    if machine is None:
        async with Workspace() as space:
            yield LocalPlace(space)
    elif tasks is None:
        async with machine.sandbox(request.rollout_id) as box:
            yield BoxPlace(box, machine.config.lifetime)
    else:
        task = tasks.task_of(request.metadata)
        async with tasks.open(task, request.rollout_id) as box:
            yield TaskPlace(tasks, task, box, machine.config.lifetime)


def config_of_box(fields: Mapping[str, Any], server_id: str, base_url: str) -> DockerConfig:
    """Return the configuration of a program's box.

    Args:
        fields: The fields of DockerConfig in the program's file.
        server_id: The name of the server in the labels of its containers.
        base_url: The address of the rollouts' base URLs, which the box may call.

    Raises:
        ValueError: A field is unknown or invalid. The message begins with its name.
    """
    known = {each.name for each in dataclasses.fields(DockerConfig)} - {"server_id", "reach"}
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise ValueError(f"[box] {unknown[0]}: is no field of a box; the fields are {', '.join(sorted(known))}")
    try:
        return DockerConfig(server_id=server_id, **fields, reach=[base_url])
    except (TypeError, ValueError) as error:
        raise ValueError(f"[box] {error}") from None


def _is_relative_file(folder: Path, word: str) -> bool:
    try:
        return not word.startswith("/") and (folder / word).is_file()
    except OSError:  # too long for a file name
        return False


async def _awaited(give_up: Callable[[], Awaitable[Any]]) -> None:
    await give_up()


def _write(folder: Path, files: Mapping[str, str | None]) -> None:
    """Write files at absolute paths or below a folder. A path with None becomes a folder. Raises OSError."""
    for name, text in files.items():
        path = folder / name
        (path if text is None else path.parent).mkdir(parents=True, exist_ok=True, mode=0o700)
        if text is not None:
            path.write_text(text, encoding="utf-8")


def _remove_result(folder: Path) -> None:
    path = folder / RESULT_FILE
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _result_file(folder: Path) -> bytes | None:
    if not os.path.lexists(folder / RESULT_FILE):
        return None
    return Files(folder, "/", None).read(RESULT_FILE, MAX_RESULT_BYTES)
