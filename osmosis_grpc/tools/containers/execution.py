"""Connects to a command in a container: its input, its two outputs, and its exit code."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.tools.sandbox import SandboxError

SEND = job("tools.container_stdin", OnFailure.RAISE)
RECEIVE = job("tools.container_output", OnFailure.RAISE)

STDIN, STDOUT, STDERR = range(3)
CHUNK = 32 * 1024
"""Standard input is sent in pieces of this many bytes."""

Sink = Callable[[bytes], Awaitable[None]]


class StreamBroken(SandboxError):
    """The stream to a container ended before the command did. The command may still be running."""


class Stream(Protocol):
    """The stream of one command."""

    async def send(self, data: bytes) -> None:
        """Write to the command's input."""

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next part of an output, STDOUT or STDERR; None at the end. Raises OSError if the stream breaks."""

    async def exit_code(self) -> int | None:
        """Return the exit code after the end; None if the stream ended before the command.

        Raises SandboxError if the command was not started.
        """


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


async def nothing() -> AsyncIterator[bytes]:
    """Yield no input."""
    return
    yield b""


async def talk(stream: Stream, stdin: AsyncIterator[bytes], sinks: dict[int, Sink]) -> int:
    """Send `stdin` to a command, pass its outputs to their sinks, and return its exit code.

    Raises StreamBroken if the stream ends first, SandboxError if the container could not run the command, and the
    errors of `stdin` and of the sinks.
    """
    sending, receiving = child(SEND, _send(stream, stdin)), child(RECEIVE, _receive(stream, sinks))
    try:
        while not receiving.done():
            await asyncio.wait({receiving} if sending.done() else {receiving, sending}, return_when="FIRST_COMPLETED")
            if sending.done():
                sending.result()
        receiving.result()
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.wait({sending, receiving})
    code = await stream.exit_code()
    if code is None:
        raise StreamBroken("the stream to the container ended before the command")
    return code


async def _receive(stream: Stream, sinks: dict[int, Sink]) -> None:
    try:
        while (part := await stream.receive()) is not None:
            channel, data = part
            if channel in sinks:
                await sinks[channel](data)
    except OSError as error:
        raise StreamBroken(f"the stream to the container broke: {type(error).__name__}") from None


async def _send(stream: Stream, stdin: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(ConnectionError):  # the command may end before it has read everything
        async for part in stdin:
            for start in range(0, len(part), CHUNK):
                await stream.send(part[start : start + CHUNK])
