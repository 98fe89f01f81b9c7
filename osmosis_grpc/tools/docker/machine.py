"""The connection to a Docker daemon, and the containers and images of one agent server."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.tools.containers.archive import Archive, digest_of_folder
from osmosis_grpc.tools.containers.execution import STDERR, Tail, nothing, talk
from osmosis_grpc.tools.containers.machine import ContainerMachine
from osmosis_grpc.tools.docker.config import PROCESS_LABEL, SERVER_LABEL, DockerConfig, container_body
from osmosis_grpc.tools.docker.forwarding import LEFT_AFTER, Forwarding, Open, remove_left_over
from osmosis_grpc.tools.docker.relays import FOLDER, PROBLEMS, RELAY
from osmosis_grpc.tools.sandbox import SandboxError, SandboxLost
from osmosis_grpc.tools.uninterrupted import uninterrupted

T = TypeVar("T")

NOT_FOUND = 404
GOING = 409
"""The status for a container that is being removed."""
ADDED = 1
"""The kind of a changed path that the image does not have."""
COPY_SECONDS = 600.0
CHUNK = 256 * 1024
BUILD_BYTES = 1024 * 1024 * 1024
"""The largest size of the folder from which an image is built, in bytes."""


class DockerMachine(ContainerMachine[DockerConfig]):
    """Makes sandboxes in containers: `async with DockerMachine(config) as machine, machine.sandbox() as box`.

    A container ends with its sandbox, and with this process, even after SIGKILL. At its start, and then every minute,
    the machine removes containers that are left of the same `server_id`. Raises MissingExtraError without aiodocker,
    and SandboxError if the daemon cannot be reached.
    """

    def __init__(self, config: DockerConfig) -> None:
        super().__init__(config)
        self._docker: Any = None
        self._attached: dict[str, Any] = {}
        """The inputs of the containers' first processes. Each container ends with its own."""
        self._forwarding: dict[str, Forwarding] = {}
        """The forwarding of each container, by name."""
        self._connections = Open()
        self._building: dict[str, asyncio.Lock] = {}

    async def connect(self) -> None:
        """Connect to the daemon. Raises MissingExtraError, and SandboxError."""
        try:
            import aiodocker
        except ImportError:
            raise MissingExtraError("DockerMachine", "docker") from None
        try:
            self._docker = aiodocker.Docker(url=self.config.url or None)
            remove_left_over(self.config.server_id)
        except (ValueError, AssertionError) as error:
            text = str(error) or "set DOCKER_HOST, or start the daemon"
            raise SandboxError(f"url: the Docker daemon cannot be found: {text}") from None

    async def disconnect(self) -> None:
        """Close the connections."""
        for forwarding in self._forwarding.values():
            await forwarding.close()
        for attached in self._attached.values():
            await attached.close()
        await self._docker.close()

    async def _call(
        self, what: str, asked: Awaitable[T], *, accept: int | tuple[int, ...] = (), seconds: float | None = None
    ) -> T | None:
        """Return the result of a call to the daemon; None for a status in `accept`. Raises SandboxLost."""
        import aiohttp
        from aiodocker import DockerError

        try:
            async with asyncio.timeout(seconds or self.config.request_timeout):
                return await asked
        except DockerError as error:
            if error.status in (accept if isinstance(accept, tuple) else (accept,)):
                return None
            raise SandboxLost(f"{what}: the Docker daemon answered {error.status}: {error.message}"[:500]) from None
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise SandboxLost(f"{what}: the Docker daemon failed: {type(error).__name__}: {error}"[:500]) from None

    async def running(self) -> Mapping[str, str]:
        """Return the containers of this process, and those that earlier processes left, with the process of each.

        A running container has a process that holds its input, so it was not left. Raises SandboxError.
        """
        wanted = {"label": [f"{SERVER_LABEL}={self.config.server_id}"]}
        listed = await self._call("the list of containers", self._docker.containers.list(all=True, filters=wanted))
        found, old = {}, time.time() - LEFT_AFTER
        for each in listed or ():
            process = each["Labels"].get(PROCESS_LABEL)
            if process == self.process or (each["State"] != "running" and each["Created"] < old):
                found[each["Names"][0].lstrip("/")] = process
        return found

    # Images.

    async def require_image(self, name: str) -> None:
        """Check that the daemon has an image. Raises SandboxError."""
        if await self._call(f"image {name}", self._docker.images.inspect(name), accept=NOT_FOUND) is None:
            raise SandboxError(f"image: the Docker daemon has no image {name}; build or pull it first")

    async def build(self, folder: Path, *, timeout: float = 1800.0) -> str:
        """Build the image of a folder with a Dockerfile, and return its name. The same files give the same image.

        Args:
            folder: The folder, which is the context of the build.
            timeout: The most seconds of the build.

        Raises:
            SandboxError: The build failed. The text has the end of its output.
        """
        from aiodocker import DockerError

        async with Archive(BUILD_BYTES) as context:
            await context.fill(folder)
            name = f"osmosis-box:{(await asyncio.to_thread(digest_of_folder, folder))[:32]}"
            async with self._building.setdefault(name, asyncio.Lock()):
                if await self._call(f"image {name}", self._docker.images.inspect(name), accept=NOT_FOUND) is not None:
                    return name
                said: deque[str] = deque(maxlen=20)
                try:
                    async with asyncio.timeout(timeout):
                        building = self._docker.images.build(
                            fileobj=context.opened(), encoding="identity", tag=name, stream=True, forcerm=True
                        )
                        async for line in building:
                            said.append(str(line.get("stream") or line.get("error") or ""))
                except (DockerError, TimeoutError, OSError) as error:
                    text = "".join(said).strip()[-2000:]
                    raise SandboxError(f"the image of {folder} cannot be built: {error}\n{text}".rstrip()) from None
                return name

    async def user_of(self, image: str) -> str:
        """Return the user of an image. Raises SandboxError."""
        shown = await self._call(f"image {image}", self._docker.images.inspect(image))
        return str((shown or {})["Config"].get("User") or "root")

    @contextlib.asynccontextmanager
    async def committed(self, name: str) -> AsyncIterator[str]:
        """Yield an image with the file system of a container, without its processes. It is removed at the end.

        Args:
            name: The name of the container.

        Raises:
            SandboxError: The image cannot be made.
        """
        image = f"osmosis-left:{name.removeprefix('osmosis-')}"
        repository, _, tag = image.partition(":")
        container = self._docker.containers.container(name)
        await self._call(f"an image of container {name}", container.commit(repository=repository, tag=tag))
        try:
            yield image
        finally:
            removing = self._docker.images.delete(image, force=True)
            with contextlib.suppress(SandboxError):
                await uninterrupted(self._call(f"image {image}", removing, accept=NOT_FOUND))

    async def changes(self, name: str) -> dict[str, bool]:
        """Return the paths that a container has changed, and whether its image has them. Raises SandboxError."""
        asked = self._docker._query_json(f"containers/{name}/changes")  # aiodocker has no method for it
        rows = await self._call(f"the changes of container {name}", asked)
        return {row["Path"]: row["Kind"] != ADDED for row in rows or ()}

    async def has_path(self, name: str, path: str) -> bool:
        """Return whether a container has a file or a folder. Raises SandboxError.

        Args:
            name: The name of the container.
            path: An absolute path.
        """

        async def look() -> bool:
            try:
                async with self._docker._query(f"containers/{name}/archive", method="HEAD", params={"path": path}):
                    return True
            except ValueError:  # an error without a body, which aiodocker wants to read
                return False

        return await self._call(f"{path} of container {name}", look()) or False

    # Files of containers. The daemon itself reads and writes them, without a program of the container.

    async def pause(self, name: str) -> None:
        """Pause the processes of a container. Raises SandboxError."""
        await self._call(f"the pause of container {name}", self._docker.containers.container(name).pause())

    async def read_path(self, name: str, path: str, most: int) -> Archive | None:
        """Return the archive of a file or a folder of a container, under its last name; None if it does not exist.

        Args:
            name: The name of the container.
            path: An absolute path.
            most: The most bytes of the archive.

        Raises:
            SandboxError: The archive is larger, or the daemon failed.
        """
        made = Archive(most)

        async def read() -> Archive:
            query = f"containers/{name}/archive"
            async with self._docker._query(query, params={"path": path}) as response:  # aiodocker's own reads it whole
                async for part in response.content.iter_chunked(CHUNK):
                    await made.write(part)
            return made

        found = None
        try:
            what = f"{path} of container {name}"
            found = await self._call(what, read(), accept=NOT_FOUND, seconds=COPY_SECONDS)
        finally:
            if found is None:
                await made.close()
        return found

    async def write_archive(self, name: str, content: Archive) -> None:
        """Write an archive to the root folder of a container. Raises SandboxError.

        Args:
            name: The name of the container.
            content: The archive, with paths relative to the root folder.
        """
        container = self._docker.containers.container(name)
        writing = container.put_archive("/", content.read())
        await self._call(f"files for container {name}", writing, seconds=COPY_SECONDS)

    async def run_as_root(self, name: str, script: str, *arguments: str) -> None:
        """Run a shell script in a container as root. Raises SandboxError if it fails.

        Args:
            name: The name of the container.
            script: The script.
            *arguments: The values of $1, $2 and so on.
        """
        err = Tail(4096)
        argv = ["sh", "-c", script, "sh", *arguments]
        try:
            async with asyncio.timeout(self.config.request_timeout), self.stream(name, argv, user="root") as stream:
                code = await talk(stream, nothing(), {STDERR: err.write})
        except TimeoutError:
            raise SandboxLost(f"container {name} did not answer") from None
        if code:
            raise SandboxError(f"container {name}: exit code {code}: {err.data().decode(errors='replace')[:300]}")

    # Containers.

    async def start(self, name: str, config: DockerConfig, rollout: str) -> str:
        """Start a container, and return its working folder. Raises SandboxError.

        Args:
            name: The name of the container.
            config: How it is made.
            rollout: The rollout, for a label.
        """
        forwarding = await self._forwarding_of(name, config)
        body = container_body(config, self.process, rollout, str(forwarding.folder) if forwarding else "")
        what = f"container {name} of the image {config.image}"
        container = await self._call(what, self._docker.containers.create(body, name=name))
        assert container is not None
        attached = self._attached[name] = container.attach(stdin=True)
        await self._call(what, attached.__aenter__())
        await self._call(what, container.start())
        if forwarding is not None:
            await self._open_ports(name, forwarding.ports)
        if config.folder:
            return config.folder
        shown = await self._call(what, container.show())
        return str((shown or {})["Config"]["WorkingDir"] or "/")

    async def _forwarding_of(self, name: str, config: DockerConfig) -> Forwarding | None:
        if not config.reach and not config.hosts:
            return None
        made = Forwarding(self.config.server_id, config.reach, config.hosts, self._supervisor, self._connections)
        await made.open()
        self._forwarding[name] = made
        return made

    async def _open_ports(self, name: str, ports: Sequence[int]) -> None:
        """Open the forwarded ports of a container. Raises SandboxError."""
        argv = ["sh", "-c", RELAY, "sh", FOLDER, *map(str, ports)]
        err = Tail(4096)
        async with asyncio.timeout(self.config.request_timeout), self.stream(name, argv) as stream:
            code = await talk(stream, nothing(), {STDERR: err.write})
        if code:
            text = PROBLEMS.get(code) or f"exit code {code}: {err.data().decode(errors='replace')[:300]}"
            raise SandboxError(f"reach, hosts: {text}")

    async def remove(self, name: str) -> None:
        """Remove a container at once, if it exists. Raises SandboxError."""
        forwarding = self._forwarding.pop(name, None)
        if forwarding is not None:
            await forwarding.close()
        attached = self._attached.pop(name, None)
        if attached is not None:
            await attached.close()
        container = self._docker.containers.container(name)
        await self._call(f"container {name}", container.delete(force=True, v=True), accept=(NOT_FOUND, GOING))

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
    async def stream(self, name: str, argv: list[str], user: str = "") -> AsyncIterator["ExecStream"]:
        """Open the stream of a command in a container. Raises SandboxError if the command was not started.

        Args:
            name: The name of the container.
            argv: The words of the command.
            user: Its user; by default that of the container.
        """
        what, container = f"a command in container {name}", self._docker.containers.container(name)
        made = await self._call(what, container.exec(argv, stdin=True, stdout=True, stderr=True, tty=False, user=user))
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
    """Raise ConnectionError for aiodocker's errors about a closed stream."""
    import aiohttp

    try:
        yield
    except (aiohttp.ClientError, RuntimeError, AssertionError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from None
