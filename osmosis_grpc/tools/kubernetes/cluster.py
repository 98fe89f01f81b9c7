"""The connection to a cluster: calls of its API with bounded retries, and the pods of one agent server."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.supervise import SYSTEM, Backoff, DaemonThreads
from osmosis_grpc.tools.containers.machine import ContainerMachine
from osmosis_grpc.tools.kubernetes.config import CONTAINER, PROCESS_LABEL, SERVER_LABEL, KubernetesConfig, pod_manifest
from osmosis_grpc.tools.kubernetes.pod_exec import PodStream
from osmosis_grpc.tools.sandbox import SandboxError, SandboxLost

log = logging.getLogger(__name__)

PAUSES = (0.2, 10.0)
"""The first and the longest pause between two tries, in seconds."""
HEARTBEAT = 20.0
"""Seconds between two pings of an exec's stream."""
CONNECTIONS = 1024
CLOSE_WITHIN = 1.0
"""A stream that both sides have not closed within this many seconds is cut."""
LOOKS = (0.1, 2.0)
"""The first and the longest pause between two checks of a pod that does not run yet, in seconds."""
HOPELESS = frozenset(
    {"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons for which a container waits and will never start."""

_threads = DaemonThreads(1)


class KubernetesCluster(ContainerMachine[KubernetesConfig]):
    """Makes sandboxes in pods: `async with KubernetesCluster(config) as cluster, cluster.sandbox() as box`.

    At its start, and then every minute, it deletes the pods of the same `server_id` that belong to no sandbox of this
    process. At its end it deletes all of them. Raises MissingExtraError without kubernetes_asyncio, and SandboxError if
    the cluster cannot be reached.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        super().__init__(config)
        self._kubernetes: Any = None
        self._clients: list[Any] = []
        self._pods: Any = None
        self._streams: Any = None

    async def connect(self) -> None:
        """Connect to the cluster. Raises MissingExtraError, and SandboxError."""
        try:
            self._kubernetes = await _threads.run(_library)
        except ImportError:
            raise MissingExtraError("KubernetesCluster", "kubernetes") from None
        try:
            await self._connect()
        except BaseException:
            await self.disconnect()
            raise

    async def _connect(self) -> None:
        library, config = self._kubernetes, self.config
        settings = library.client.Configuration()
        try:
            if config.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                library.config.load_incluster_config(client_configuration=settings)
            else:
                file = str(config.kubeconfig) if config.kubeconfig is not None else None
                await library.config.load_kube_config(
                    config_file=file, context=config.context, client_configuration=settings
                )
        except (library.config.ConfigException, OSError) as error:
            raise SandboxError(f"kubeconfig: cannot be used: {error}") from None
        settings.connection_pool_maxsize = CONNECTIONS
        self._clients = [library.client.ApiClient(settings), library.stream.WsApiClient(settings, heartbeat=HEARTBEAT)]
        self._pods, self._streams = map(library.client.CoreV1Api, self._clients)

    async def disconnect(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    # Calls.

    async def call(self, what: str, ask: Callable[[], Awaitable[Any]], *, accept: int | None = None) -> Any:
        """Return the result of a call of the API. Retries after 429, 5xx, a conflict, a failed connection or a timeout.

        Args:
            what: The beginning of the error's text.
            ask: Makes the call.
            accept: A status for which the result is None.

        Raises:
            SandboxLost: The last try failed.
        """
        backoff, attempt = Backoff(*PAUSES, system=SYSTEM), 0
        while True:
            attempt += 1
            try:
                async with asyncio.timeout(self.config.request_timeout):
                    return await ask()
            except Exception as error:
                failure = _Failure(error)
            if failure.status is not None and failure.status == accept and failure.final:
                return None
            if failure.final or attempt == self.config.attempts:
                tries = "1 try" if attempt == 1 else f"{attempt} tries"
                raise SandboxLost(f"{what}: the Kubernetes API failed after {tries}: {failure}") from failure.unexpected
            pause = max(backoff.next(), failure.retry_after)
            log.debug("%s: try %d failed (%s); the next one is in %.2f s", what, attempt, failure, pause)
            await asyncio.sleep(pause)

    async def running(self) -> Mapping[str, str]:
        """Return the names of this server's pods, and the process that made each. Raises SandboxError."""
        config = self.config
        selector = f"{SERVER_LABEL}={config.server_id}"
        listed = await self.call(
            "the list of pods", lambda: self._pods.list_namespaced_pod(config.namespace, label_selector=selector)
        )
        return {
            pod.metadata.name: pod.metadata.labels.get(PROCESS_LABEL)
            for pod in listed.items
            if pod.metadata.deletion_timestamp is None
        }

    # Pods.

    async def start(self, name: str, config: KubernetesConfig, rollout: str) -> str:
        """Create a pod, and return its working folder when it runs. Raises SandboxError.

        Args:
            name: The name of the pod.
            config: How it is made.
            rollout: The rollout, for an annotation of the pod.
        """
        manifest = pod_manifest(config, name, self.process, rollout)
        # The name is random, so an existing pod is from an earlier try whose answer was lost.
        await self.call(
            f"pod {name}", lambda: self._pods.create_namespaced_pod(self.config.namespace, manifest), accept=409
        )
        seen, backoff = "nothing was seen of it", Backoff(*LOOKS, system=SYSTEM)
        try:
            async with asyncio.timeout(config.ready_within):
                while True:
                    seen = self._state(await self._read(name))
                    if not seen:
                        return config.folder
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            limit = config.ready_within
            raise SandboxError(f"ready_within: pod {name} does not run after {limit:g} s: {seen}") from None

    async def _read(self, name: str) -> Any:
        return await self.call(f"pod {name}", lambda: self._pods.read_namespaced_pod(name, self.config.namespace))

    def _state(self, pod: Any) -> str:
        """Return "" if a pod runs, or else why it does not run yet. Raises SandboxError if it never will."""
        statuses = pod.status.container_statuses or []
        waiting = [status.state.waiting for status in statuses if status.state and status.state.waiting]
        reason = next((f"{wait.reason}: {wait.message or ''}" for wait in waiting), pod.status.phase)
        hopeless = any(wait.reason in HOPELESS for wait in waiting)
        if pod.status.phase in ("Failed", "Succeeded") or hopeless:
            raise SandboxError(f"pod {pod.metadata.name} cannot run: {_ended(pod) or reason}")
        return "" if pod.status.phase == "Running" and not waiting and statuses else str(reason)

    async def why_ended(self, name: str) -> str:
        """Return why a pod no longer runs; an empty text if it runs, or if that is unknown."""
        try:
            pod = await self._read(name)
        except SandboxError as error:
            return str(error)
        return _ended(pod)

    async def remove(self, name: str) -> None:
        """Delete a pod at once. A pod that is gone is not an error. Raises SandboxError."""
        await self.call(
            f"pod {name}",
            lambda: self._pods.delete_namespaced_pod(name, self.config.namespace, grace_period_seconds=0),
            accept=404,
        )

    @contextlib.asynccontextmanager
    async def stream(self, name: str, argv: list[str]) -> Any:
        """Open the stream of a command in a pod. Raises SandboxError if the command was not started.

        Args:
            name: The name of the pod.
            argv: The words of the command.
        """

        async def connect() -> Any:
            request = await self._streams.connect_get_namespaced_pod_exec(
                name,
                self.config.namespace,
                container=CONTAINER,
                command=argv,
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            return await request

        socket = await self.call(f"exec in pod {name}", connect)
        try:
            yield PodStream(socket)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN):
                    await socket.close()


class _Failure:
    """A failed call: its status, whether a retry is useless, and its text without secrets."""

    def __init__(self, error: Exception) -> None:
        status = getattr(error, "status", None)
        import aiohttp

        self.status: int | None = status if isinstance(status, int) else None
        self.unexpected: Exception | None = None
        body = _body(error)
        reason = str(body.get("reason") or "")
        if self.status is not None:
            transient = self.status == 429 or self.status >= 500 or (self.status == 409 and reason != "AlreadyExists")
            self.final = not transient
            self.text = f"{self.status} {body.get('message') or reason or getattr(error, 'reason', '')}"[:500]
        else:
            self.final = not isinstance(error, OSError | TimeoutError | aiohttp.ClientError)
            self.unexpected = error if self.final else None
            self.text = type(error).__name__ if not self.final else f"{type(error).__name__}: {error}"[:500]
        headers = getattr(error, "headers", None) or {}
        after = headers.get("Retry-After", "")
        self.retry_after = min(float(after), PAUSES[1]) if after.isdecimal() else 0.0

    def __str__(self) -> str:
        return self.text


def _body(error: Exception) -> dict[str, Any]:
    try:
        body = json.loads(getattr(error, "body", None) or "{}")
    except (ValueError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}


def _ended(pod: Any) -> str:
    if pod.status.phase not in ("Failed", "Succeeded"):
        return ""
    return f"{pod.status.phase}: {pod.status.reason or 'no reason'}: {pod.status.message or ''}".rstrip(": ")


def _library() -> Any:
    """Import the library on a thread, because it takes a second."""
    import kubernetes_asyncio
    import kubernetes_asyncio.client
    import kubernetes_asyncio.config
    import kubernetes_asyncio.stream

    return kubernetes_asyncio
