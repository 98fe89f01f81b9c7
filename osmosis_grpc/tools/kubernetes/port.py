"""The port of a cluster: what a sandbox in a pod asks of the connection to the cluster."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from osmosis_grpc.tools.kubernetes.config import KubernetesConfig


class Pods(Protocol):
    """Creates and deletes pods, and opens streams to commands in them."""

    config: KubernetesConfig

    async def create(self, name: str, rollout: str) -> None:
        """Create a pod, and return when it runs. Raises SandboxError. The caller deletes the pod, in either case."""

    async def delete(self, name: str) -> None:
        """Delete a pod at once. A pod that is gone is no error. Logs a failure, and tries again later."""

    async def why_ended(self, name: str) -> str:
        """Return why a pod no longer runs; an empty text if it runs, or if that is unknown."""

    def stream(self, name: str, argv: list[str]) -> AbstractAsyncContextManager[Any]:
        """Open the stream of a command in a pod. Raises SandboxError if the command was not started."""
