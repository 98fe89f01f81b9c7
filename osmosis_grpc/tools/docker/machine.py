"""The connection to a Docker daemon, and the containers of one agent server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator
from typing import Any, Self, TypeVar

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.supervise import SYSTEM, OnFailure, Supervisor, job
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.docker.config import PROCESS_LABEL, SERVER_LABEL, DockerConfig, container_body
from osmosis_grpc.tools.sandbox import Protection, SandboxError, SandboxLost

log = logging.getLogger(__name__)
T = TypeVar("T")

CLEAN_UP = job("tools.docker_clean_up", OnFailure.RESTART)
CLEAN_EVERY = 60.0
"""Seconds between two searches for containers that no sandbox has."""
GONE = 404


class DockerMachine:
    """Makes sandboxes in containers: `async with DockerMachine(config) as machine, machine.sandbox() as box`.

    At its start, and then every minute, it removes the containers of the same `server_id` that no sandbox of this
    process has. At its end it removes all of them. Raises MissingExtraError without aiodocker, and SandboxError if the
    daemon cannot be reached.

    Args:
        config: How containers are made.
    """

    def __init__(self, config: DockerConfig) -> None:
        self.config = config
        self.process = SYSTEM.new_id()
        """The name of this process in the labels of its containers."""
        self._open: set[str] = set()
        self._supervisor = Supervisor("the Docker sandboxes")
        self._docker: Any = None

    def sandbox(self, rollout: str = "", *, require: Collection[Protection | str] = ()) -> ContainerSandbox:
        """Return a sandbox, not started. Each has a container of its own.

        Args:
            rollout: The rollout, for a label of the container.
            require: The protections without which the sandbox does not start (SandboxRefused).
        """
        return ContainerSandbox(self, rollout, require)

    async def __aenter__(self) -> Self:
        try:
            import aiodocker
        except ImportError:
            raise MissingExtraError("DockerMachine", "docker") from None
        try:
            self._docker = aiodocker.Docker(url=self.config.url or None)
        except ValueError as error:
            raise SandboxError(f"url: the Docker daemon cannot be found: {error}") from None
        try:
            await self.clean_up()
        except BaseException:
            await self._docker.close()
            raise
        self._supervisor.every(CLEAN_UP, CLEAN_EVERY, self.clean_up)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._supervisor.close()
        try:
            self._open.clear()
            await self.clean_up()
        finally:
            await self._docker.close()

    async def _call(self, what: str, asked: Awaitable[T], *, accept: int | None = None) -> T | None:
        """Return the result of a call of the daemon. Raises SandboxLost. With the status `accept` it is None."""
        import aiohttp
        from aiodocker import DockerError

        try:
            async with asyncio.timeout(self.config.request_timeout):
                return await asked
        except DockerError as error:
            if error.status == accept:
                return None
            raise SandboxLost(f"{what}: the Docker daemon answered {error.status}: {error.message}"[:500]) from None
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise SandboxLost(f"{what}: the Docker daemon failed: {type(error).__name__}: {error}"[:500]) from None

    async def clean_up(self) -> None:
        """Remove the containers of this server that no sandbox of this process has. Raises SandboxError."""
        wanted = {"label": [f"{SERVER_LABEL}={self.config.server_id}"]}
        listed = await self._call("the list of containers", self._docker.containers.list(all=True, filters=wanted))
        for container in listed or ():
            name = container["Names"][0].lstrip("/")
            if name not in self._open:
                if container["Labels"].get(PROCESS_LABEL) != self.process:
                    log.warning("removing container %s, which an earlier process of this server has left", name)
                await self.delete(name)

    # Containers.

    async def create(self, name: str, rollout: str) -> None:
        """Create a container and start it. Raises SandboxError. The caller deletes the container, in either case.

        Args:
            name: The name of the container.
            rollout: The rollout, for a label of the container.
        """
        self._open.add(name)
        body = container_body(self.config, self.process, rollout)
        what = f"container {name} of the image {self.config.image}"
        container = await self._call(what, self._docker.containers.create(body, name=name))
        assert container is not None
        await self._call(what, container.start())

    async def delete(self, name: str) -> None:
        """Remove a container at once. One that is gone is no error. A failure is logged, and clean_up() tries again.

        Args:
            name: The name of the container.
        """
        self._open.discard(name)
        try:
            container = self._docker.containers.container(name)
            await self._call(f"container {name}", container.delete(force=True, v=True), accept=GONE)
        except SandboxError as error:
            log.warning("a container is left, and is tried again in %g s: %s", CLEAN_EVERY, error)

    async def why_ended(self, name: str) -> str:
        """Return why a container no longer runs; an empty text if it runs.

        Args:
            name: The name of the container.
        """
        try:
            shown = await self._call(f"container {name}", self._docker.containers.get(name))
        except SandboxError as error:
            return str(error)
        state = shown["State"] if shown is not None else {}
        if state.get("Running"):
            return ""
        return "out of memory" if state.get("OOMKilled") else f"exit code {state.get('ExitCode')}"

    @contextlib.asynccontextmanager
    async def stream(self, name: str, argv: list[str]) -> AsyncIterator["ExecStream"]:
        """Open the stream of a command in a container. Raises SandboxError if the command was not started.

        Args:
            name: The name of the container.
            argv: The words of the command.
        """
        what, container = f"a command in container {name}", self._docker.containers.container(name)
        made = await self._call(what, container.exec(argv, stdin=True, stdout=True, stderr=True, tty=False))
        assert made is not None
        socket = made.start(detach=False)
        await self._call(what, socket.__aenter__())
        try:
            yield ExecStream(made, socket)
        finally:
            await socket.close()


class ExecStream:
    """The stream of an exec of Docker."""

    def __init__(self, made: Any, socket: Any) -> None:
        self._made = made
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Write to the command's input. Raises ConnectionError if the stream is broken."""
        with _broken():
            await self._socket.write_in(data)

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next part of an output; None at the end. Raises ConnectionError if the stream is broken."""
        with _broken():
            message = await self._socket.read_out()
        return None if message is None else (message.stream, message.data)

    async def exit_code(self) -> int | None:
        """Return the exit code; None if the command still runs, or if the container is gone."""
        from aiodocker import DockerError

        try:
            with _broken():
                code = (await self._made.inspect())["ExitCode"]
        except (DockerError, OSError, TimeoutError):
            return None
        return None if code is None else int(code)


@contextlib.contextmanager
def _broken() -> Iterator[None]:
    """Raise ConnectionError for the errors with which aiodocker says that a stream is closed."""
    import aiohttp

    try:
        yield
    except (aiohttp.ClientError, RuntimeError, AssertionError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from None
