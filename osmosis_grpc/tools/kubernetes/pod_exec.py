"""Runs a command in a pod over a WebSocket with the subprotocol v4.channel.k8s.io."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.tools.sandbox import SandboxError

SEND = job("tools.pod_stdin", OnFailure.RAISE)
RECEIVE = job("tools.pod_output", OnFailure.RAISE)

STDIN, STDOUT, STDERR, STATUS = range(4)
"""The channels: the first byte of each frame."""
CHUNK = 32 * 1024
"""The bytes of standard input in one frame."""

Sink = Callable[[bytes], Awaitable[None]]


class StreamBroken(SandboxError):
    """The stream to a pod ended before the command. The command may still run."""


class Tail:
    """Keeps the newest bytes, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False
        """Whether older bytes were dropped."""

    async def write(self, data: bytes) -> None:
        """Append bytes."""
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            self._cut()

    def data(self) -> bytes:
        """Return the newest bytes."""
        self._cut()
        return bytes(self._kept)

    def _cut(self) -> None:
        more = len(self._kept) - self._limit
        if more > 0:
            del self._kept[:more]
            self.truncated = True


async def talk(socket: Any, stdin: AsyncIterator[bytes], sinks: dict[int, Sink]) -> int:
    """Send `stdin` to a command, pass its output to the sinks of the channels, and return its exit code.

    Raises StreamBroken if the stream ends first, SandboxError if the pod could not run the command, and the errors of
    `stdin` and of the sinks.
    """
    sending, receiving = child(SEND, _send(socket, stdin)), child(RECEIVE, _receive(socket, sinks))
    try:
        while not receiving.done():
            await asyncio.wait({receiving} if sending.done() else {receiving, sending}, return_when="FIRST_COMPLETED")
            if sending.done():
                sending.result()
        status = receiving.result()
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.wait({sending, receiving})
    if not status:
        raise StreamBroken("the stream to the pod ended before the command")
    return exit_code(status)


async def _receive(socket: Any, sinks: dict[int, Sink]) -> bytes:
    status = bytearray()
    try:
        async for message in socket:
            data = message.data
            if not isinstance(data, bytes) or len(data) < 2:
                continue  # an empty frame opens a channel
            if data[0] == STATUS:
                status += data[1:]
            elif data[0] in sinks:
                await sinks[data[0]](data[1:])
    except OSError as error:
        raise StreamBroken(f"the stream to the pod broke: {type(error).__name__}") from None
    return bytes(status)


async def _send(socket: Any, stdin: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(ConnectionError):  # the command may end before it has read all
        async for part in stdin:
            for start in range(0, len(part), CHUNK):
                await socket.send_bytes(bytes([STDIN]) + part[start : start + CHUNK])


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
