"""The boxes of tasks: one for the agent, and after it a new one for the tests."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from osmosis_grpc.tools.sandbox import SandboxError
from osmosis_grpc.tools.tasks.artifacts import copy_artifacts
from osmosis_grpc.tools.tasks.changed_programs import changed_programs
from osmosis_grpc.tools.tasks.harbor_task import HarborTask, Place, load_tasks, resolved_env
from osmosis_grpc.tools.tasks.verifier import Verdict, run_tests

MIB = 1024 * 1024


class TaskBoxes:
    """Opens the boxes of the tasks of a folder.

    Args:
        folder: A task in Harbor's format, or a folder of tasks.
        machine: Makes the boxes. Its configuration applies to all fields that a task does not set.

    Raises:
        ValueError: There is no task, or one cannot be used.
    """

    def __init__(self, folder: Path, machine: DockerMachine) -> None:
        self.tasks = load_tasks(folder)
        self._machine = machine
        self._digests = {name: task.digest() for name, task in self.tasks.items()}
        for task in self.tasks.values():
            for env in (task.place.env, task.verifier_place.env, task.verifier_env):
                try:
                    resolved_env(env)
                except ValueError as error:
                    raise ValueError(f"{task.folder}: {error}") from None

    def task_of(self, metadata: Mapping[str, Any]) -> HarborTask:
        """Return the task that a request's metadata names, as in the rows of `-d FOLDER`. Raises InvalidArgument."""
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
            SandboxError: The files have changed, the image cannot be built, or the box cannot be started.
        """
        await self._check_files(task)
        config = await self._config(task.place, task.agent_user)
        async with self._machine.sandbox(rollout, config=config) as box:
            await box.run("mkdir -p /logs/agent /logs/artifacts && chmod 777 /logs/agent /logs/artifacts")
            yield box

    async def verify(self, task: HarborTask, box: ContainerSandbox) -> Verdict:
        """Run the tests of a task in a new box. The box of the agent ends.

        The new box has the file system that the agent has left, or only the artifacts if the task requires this. It
        does not have the agent's processes, tests that it may have written, or its reward files.

        Args:
            task: The task.
            box: The box of open().

        Raises:
            SandboxError: The files have changed, or a box failed.
        """
        await self._check_files(task)
        config = await self._config(task.verifier_place, task.verifier_user)
        await self._machine.pause(box.name)  # the agent's processes can no longer change a file
        if task.separate:
            async with self._machine.sandbox(box.name, config=config) as fresh:
                most = config.snapshot_bytes
                await copy_artifacts(self._machine, task.artifacts, box.name, box.folder or "/", fresh.name, most)
                await box.close()
                return await run_tests(task, fresh, self._machine)
        user = config.user if config.user is not None else await self._machine.user_of(config.image)
        programs = await changed_programs(self._machine, box.name)
        async with self._machine.committed(box.name) as image:
            await box.close()
            left = replace(config, image=image, user=user)
            async with self._machine.sandbox(box.name, config=left) as fresh:
                verdict = await run_tests(task, fresh, self._machine)
        return replace(verdict, changed_programs=tuple(programs))

    async def _config(self, place: Place, user: str | int | None) -> DockerConfig:
        base = self._machine.config
        image = place.image or await self._machine.build(place.folder, timeout=place.build_seconds)
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
            environment={**base.environment, **resolved_env(place.env)},
        )

    async def _check_files(self, task: HarborTask) -> None:
        """Raise SandboxError if the files of a task have changed since the start of the server."""
        if await asyncio.to_thread(task.digest) != self._digests[task.name]:
            raise SandboxError(f"{task.folder}: its files have changed since the server began; start it again")
