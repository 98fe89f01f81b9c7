"""The machine that runs the containers of one agent server. It makes sandboxes, and removes left-over containers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, Self, TypeVar

from osmosis_grpc.supervise import SYSTEM, OnFailure, Supervisor, job
from osmosis_grpc.tools.containers.execution import Stream
from osmosis_grpc.tools.containers.sandbox import ContainerConfig, ContainerSandbox, Started
from osmosis_grpc.tools.sandbox import Protection, SandboxError
from osmosis_grpc.tools.uninterrupted import uninterrupted

log = logging.getLogger(__name__)

CLEAN_UP = job("tools.container_clean_up", OnFailure.RESTART)
WARM_UP = job("tools.start_spare_containers", OnFailure.RESTART)
CLEAN_EVERY = 60.0
"""Seconds between two searches for containers that belong to no sandbox."""


class MachineConfig(ContainerConfig, Protocol):
    """The fields of a configuration that a machine uses."""

    @property
    def warm(self) -> int: ...


C = TypeVar("C", bound=MachineConfig)


class ContainerMachine(ABC, Generic[C]):
    """Makes sandboxes in containers: `async with machine, machine.sandbox() as box`.

    At its start, and then every minute, it removes the containers of the same `server_id` that no sandbox of this
    process has. At its end it removes all of them.

    Args:
        config: How containers are made.
    """

    def __init__(self, config: C) -> None:
        self.config = config
        self.process = SYSTEM.new_id()
        """The name of this process in the labels of its containers."""
        self._open: set[str] = set()
        self._warm: deque[Started] = deque()
        self._taken = asyncio.Event()
        self._supervisor = Supervisor(f"the sandboxes in containers of {type(self).__name__}")

    def sandbox(
        self, rollout: str = "", *, require: Collection[Protection | str] = (), config: C | None = None
    ) -> ContainerSandbox:
        """Return a sandbox, not started. Each has its own container.

        Args:
            rollout: The rollout, for a label of the container.
            require: The required protections. Without one of them, the sandbox does not start (SandboxRefused).
            config: The configuration of this container; by default the machine's.
        """
        chosen = self.config if config is None else config

        async def start() -> Started:
            warm = self.config.warm and chosen == self.config
            return await (self._take() if warm else self._make(chosen, rollout))

        return ContainerSandbox(self, chosen, start, require)

    async def __aenter__(self) -> Self:
        await self.connect()
        try:
            await self.clean_up()
        except BaseException:
            await self.disconnect()
            raise
        self._supervisor.every(CLEAN_UP, CLEAN_EVERY, self.clean_up)
        if self.config.warm:
            self._supervisor.start(WARM_UP, self._warm_up)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._supervisor.close()
        try:
            self._open.clear()
            await self.clean_up()
        finally:
            await self.disconnect()

    async def clean_up(self) -> None:
        """Remove the containers of this server that no sandbox of this process has. Raises SandboxError."""
        for name, process in (await self.running()).items():
            if name not in self._open:
                if process != self.process:
                    log.warning("removing container %s, which an earlier process of this server has left", name)
                await self.delete(name)

    async def delete(self, name: str) -> None:
        """Remove a container at once, if it exists. A failure is logged, and clean_up() tries again.

        Args:
            name: The name of the container.
        """
        self._open.discard(name)
        try:
            await self.remove(name)
        except SandboxError as error:
            log.warning("a container is left, and is tried again in %g s: %s", CLEAN_EVERY, error)

    async def _make(self, config: C, rollout: str) -> Started:
        """Start a container. Raises SandboxError, and then leaves no container."""
        name = f"osmosis-{SYSTEM.new_id()}"
        self._open.add(name)
        try:
            return Started(name, (await self.start(name, config, rollout)).rstrip("/") or "/")
        except BaseException:
            await uninterrupted(self.delete(name))
            raise

    # Containers that run before they are needed.

    async def _take(self) -> Started:
        """Return a container that was started before, or start one."""
        while self._warm:
            started = self._warm.popleft()
            self._taken.set()
            if not await self.why_ended(started.name):
                return started
            await self.delete(started.name)
        return await self._make(self.config, "")

    async def _warm_up(self) -> None:
        """Keep the configured number of containers ready."""
        while True:
            self._taken.clear()
            while len(self._warm) < self.config.warm:
                self._warm.append(await self._make(self.config, ""))
            await self._taken.wait()

    # The methods that each kind of machine implements.

    @abstractmethod
    async def connect(self) -> None:
        """Connect to the daemon or cluster. Raises MissingExtraError, and SandboxError."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection."""

    @abstractmethod
    async def running(self) -> Mapping[str, str]:
        """Return the names of this server's containers, and the process that made each. Raises SandboxError."""

    @abstractmethod
    async def start(self, name: str, config: C, rollout: str) -> str:
        """Start a container, and return its working folder when it runs. Raises SandboxError.

        Args:
            name: The name of the container. The caller removes it if this fails.
            config: How it is made.
            rollout: The rollout, for a label.
        """

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove a container at once, if it exists. Raises SandboxError."""

    @abstractmethod
    async def why_ended(self, name: str) -> str:
        """Return why a container no longer runs; an empty text if it runs."""

    @abstractmethod
    def stream(self, name: str, argv: list[str]) -> AbstractAsyncContextManager[Stream]:
        """Open the stream of a command in a container. Raises SandboxError if the command was not started.

        Args:
            name: The name of the container.
            argv: The words of the command.
        """
