"""A stream call in memory, to test code that uses one."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from osmosis_grpc.protocol.errors import Unavailable


class StreamEnd:
    """One end of a stream call in memory. It is a Duplex of osmosis_grpc.network.frame_stream. See stream_pair()."""

    def __init__(self, wire: "_Wire", decode: Callable[[bytes], Any], inbox: deque[Any], outbox: deque[Any]) -> None:
        self.written: list[bytes] = []
        """The messages that this end has written, in order."""
        self.received = 0
        """The number of bytes in the messages that this end has read."""
        self._wire = wire
        self._decode = decode
        self._inbox = inbox
        self._outbox = outbox

    async def read(self) -> Any:
        """Return the next message, or grpc.aio.EOF. Raises the error of cut()."""
        await self._wire.until(lambda: bool(self._inbox))
        if self._inbox[0] is grpc.aio.EOF:
            return self._inbox[0]
        data = self._inbox.popleft()
        self.received += len(data)
        self._wire.changed.set()
        return self._decode(data)

    @property
    def sent(self) -> int:
        """The number of bytes in the messages that this end has written."""
        return sum(map(len, self.written))

    async def write(self, message: bytes) -> None:
        """Write a message. First wait until fewer than `capacity` messages are unread. Raises the error of cut()."""
        await self._wire.until(lambda: len(self._outbox) < self._wire.capacity)
        self.written.append(message)
        self._put(message)

    async def done_writing(self) -> None:
        """Half-close the stream. The other end reads grpc.aio.EOF after the last message."""
        self._put(grpc.aio.EOF)

    def cut(self, error: Exception | None = None) -> None:
        """Break both directions, and drop unread messages. Reads and writes raise `error`, by default Unavailable."""
        self._wire.error = error or Unavailable("the stream was cut")
        self._wire.changed.set()

    def _put(self, message: Any) -> None:
        self._outbox.append(message)
        self._wire.changed.set()


class _Wire:
    """The state that the two ends share."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    async def until(self, ready: Callable[[], bool]) -> None:
        while self.error is None and not ready():
            self.changed.clear()
            await self.changed.wait()
        if self.error is not None:
            raise self.error


def stream_pair(
    first: Callable[[bytes], Any], second: Callable[[bytes], Any], *, capacity: int = 1
) -> tuple[StreamEnd, StreamEnd]:
    """Return the two ends of a stream call.

    Args:
        first: Decodes the messages of the first end.
        second: Decodes the messages of the second end.
        capacity: How many messages an end can write before the other end reads one.
    """
    wire = _Wire(capacity)
    there: deque[Any] = deque()
    back: deque[Any] = deque()
    return StreamEnd(wire, second, back, there), StreamEnd(wire, first, there, back)
