"""The stream of a command in a pod: a WebSocket with the subprotocol v4.channel.k8s.io."""

import json
from typing import Any

from osmosis_grpc.tools.containers.execution import STDIN
from osmosis_grpc.tools.sandbox import SandboxError

STATUS = 3
"""The channel of the command's end. The first byte of each frame is its channel."""


class PodStream:
    """The stream of a WebSocket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._frames = aiter(socket)
        self._status = bytearray()

    async def send(self, data: bytes) -> None:
        """Write to the command's input."""
        await self._socket.send_bytes(bytes([STDIN]) + data)

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next part of an output; None at the end."""
        async for message in self._frames:
            data = message.data
            if not isinstance(data, bytes) or len(data) < 2:
                continue  # an empty frame opens a channel
            if data[0] != STATUS:
                return data[0], data[1:]
            self._status += data[1:]
        return None

    async def exit_code(self) -> int | None:
        """Return the exit code; None if there was no status. Raises SandboxError if the command was not started."""
        return exit_code(bytes(self._status)) if self._status else None

    async def close(self) -> None:
        """Close the WebSocket."""
        await self._socket.close()


def exit_code(status: bytes) -> int:
    """Return the exit code of a Status of Kubernetes. Raises SandboxError if the command was not started."""
    try:
        told = json.loads(status)
        if told["status"] == "Success":
            return 0
        codes = [
            cause["message"] for cause in told.get("details", {}).get("causes", ()) if cause["reason"] == "ExitCode"
        ]
        if codes:
            return int(codes[0])
        problem = str(told.get("message") or told.get("reason") or "unknown")
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "its status cannot be read"
    raise SandboxError(f"the pod cannot run the command: {problem[:500]}")
