"""The boxes of tasks: one for the agent, and after it a new one for the tests."""

import posixpath
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from osmosis_grpc.tools.sandbox import SandboxError
from osmosis_grpc.tools.tasks.harbor_task import Artifact, HarborTask, Place, load_tasks, resolved_env
from osmosis_grpc.tools.tasks.verifier import Verdict, run_tests

MIB = 1024 * 1024
_STAGED = "/tmp/osmosis-artifacts"  # noqa: S108 - the /tmp of a container
_STAGE = """mkdir -p "$1" && { [ -e "/$2" ] || exit 0; }
s=$1 p=$2; shift 2
tar -C / "$@" -cf - "$p" | tar -C "$s" -xf -"""
"""Copies /$2 into the folder $1. The others are options of tar."""
_PROGRAMS = ("/bin/", "/sbin/", "/lib", "/usr/bin/", "/usr/sbin/", "/usr/lib", "/usr/local/bin/", "/usr/local/lib")
_NOT_PROGRAMS = ("/__pycache__", ".pyc")


class TaskBoxes:
    """Opens the boxes of the tasks of a folder.

    Args:
        folder: A task in Harbor's format, or a folder of tasks.
        machine: Makes the boxes. The fields of its configuration that a task does not set hold for all tasks.

    Raises:
        ValueError: There is no task, or one cannot be used.
    """

    def __init__(self, folder: Path, machine: DockerMachine) -> None:
        self.tasks = load_tasks(folder)
        self._machine = machine
        self._digests = {name: task.digest() for name, task in self.tasks.items()}

    def task_of(self, metadata: Mapping[str, Any]) -> HarborTask:
        """Return the task that a request's metadata name, as the rows of `-d FOLDER` do. Raises InvalidArgument."""
        name = metadata.get("task")
        if not isinstance(name, str) or name not in self.tasks:
            known = ", ".join(list(self.tasks)[:5]) + (", ..." if len(self.tasks) > 5 else "")
            raise InvalidArgument("spec.metadata.task", f"is {name!r:.200}; the server's tasks are {known}")
        digest = metadata.get("task_digest")
        if digest is not None and digest != self._digests[name]:
            raise InvalidArgument(
                "spec.metadata.task_digest", f"the server has other files of the task {name} than the trainer"
            )
        return self.tasks[name]

    @asynccontextmanager
    async def open(self, task: HarborTask, rollout: str = "") -> AsyncIterator[ContainerSandbox]:
        """Yield the box in which an agent works on a task. The tests are not in it.

        Args:
            task: The task.
            rollout: The rollout, for a label of the container.

        Raises:
            SandboxError: The image cannot be built, or the box cannot be started.
        """
        config = await self._config(task.place, task.agent_user)
        async with self._machine.sandbox(rollout, config=config) as box:
            await box.run("mkdir -p /logs/agent /logs/artifacts && chmod 777 /logs/agent /logs/artifacts")
            yield box

    async def verify(self, task: HarborTask, box: ContainerSandbox) -> Verdict:
        """Run the tests of a task in a new box. The box of the agent ends.

        The new box has the file system that the agent has left, or only the artifacts if the task says so. The agent's
        processes, the tests that it may have written, and its reward files are not in it.

        Args:
            task: The task.
            box: The box of open().

        Raises:
            SandboxError: A box failed.
        """
        config = await self._config(task.verifier_place, task.verifier_user)
        if task.separate:
            with tempfile.TemporaryDirectory(prefix="osmosis-") as made:
                await _collect(task.artifacts, box, Path(made))
                await box.close()
                async with self._machine.sandbox(box.name, config=config) as fresh:
                    await fresh.upload(Path(made), "/")
                    return await run_tests(task, fresh)
        user = config.user if config.user is not None else await self._machine.user_of(config.image)
        changed = await self._machine.changes(box.name)
        async with self._machine.committed(box.name) as image:
            await box.close()
            left = replace(config, image=image, user=user)
            async with self._machine.sandbox(box.name, config=left) as fresh:
                verdict = await run_tests(task, fresh)
        programs = [path for path in changed if _is_program(path)]
        return replace(verdict, changed_programs=tuple(programs[:20]))

    async def _config(self, place: Place, user: str | int | None) -> DockerConfig:
        base = self._machine.config
        image = place.image or await self._machine.build(place.folder, timeout=place.build_seconds)
        try:
            environment = {**base.environment, **resolved_env(place.env)}
        except ValueError as error:
            raise SandboxError(str(error)) from None
        return replace(
            base,
            image=image,
            writable=True,
            user=user,
            folder=place.workdir,
            cpus=place.cpus or base.cpus,
            memory=base.memory if place.memory_mib is None else place.memory_mib * MIB,
            network="bridge" if place.network else "none",
            hosts=place.hosts,
            environment=environment,
        )


async def _collect(artifacts: tuple[Artifact, ...], box: ContainerSandbox, into: Path) -> None:
    """Copy the artifacts of a box to a folder of this machine, below their absolute paths. Raises SandboxError.

    Artifacts that do not exist are left out.
    """
    for artifact in artifacts:
        path = posixpath.normpath(posixpath.join(box.folder, artifact.source))
        excluded = [f"--exclude={pattern}" for pattern in artifact.exclude]
        copied = await box.run(["sh", "-c", _STAGE, "sh", _STAGED, path.lstrip("/"), *excluded], seconds=600)
        if copied.exit_code:
            text = copied.stderr.decode(errors="replace").strip()[:300]
            raise SandboxError(f"artifacts: {artifact.source} cannot be copied: {text}")
    await box.download(_STAGED, into)


def _is_program(path: str) -> bool:
    return path.startswith(_PROGRAMS) and not any(mark in path for mark in _NOT_PROGRAMS)
