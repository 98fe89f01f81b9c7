"""One stream of an attachment: sends frames, records received frames, and tells how the stream ended."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from osmosis_grpc.supervise import OnFailure, child, job

READ = job("testing.read", OnFailure.RAISE)
TIMEOUT = 10.0
"""How many seconds a stream waits before it raises TimeoutError."""

M = TypeVar("M", bound=Message)


class RawStream:
    """One stream call, seen from either side. It reads in the background until it ends.

    `call` is a client's stream call or a servicer's context. `message` is the type of the messages that this side
    sends.
    """

    forgets: frozenset[str] = frozenset()
    """The kinds of frames that are counted but not kept."""
    timeout = TIMEOUT
    """How many seconds `next`, `until` and `ended` wait before they raise TimeoutError."""

    def __init__(self, call: Any, message: Any) -> None:
        self.frames: list[Any] = []
        """The received frames, in order."""
        self.messages: list[tuple[int, int]] = []
        """The number of frames and of bytes in each received message."""
        self.forgotten = 0
        """The number of received frames that were not kept."""
        self.over: str | None = None
        """The name of the status with which the stream ended; None while it is open."""
        self.details = ""
        """The text of the status with which the stream ended."""
        self.status = status_pb2.Status()
        """The status with its details; empty if the peer sent no details."""
        self._call = call
        self._message = message
        self._taken: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self.reader = child(READ, self._read())
        """The task that reads. It is done when the stream has ended."""

    async def send(self, *frames: Any) -> None:
        """Send frames in one message."""
        await self.send_bytes(self._message(frames=frames).SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        """Send any bytes as a message."""
        await self._call.write(data)

    async def next(self, kind: str) -> Any:
        """Return the first frame of a kind that was not returned before. Raises AssertionError if the stream ends."""
        await self.until(lambda: self.fresh(kind) > 0 or self.over is not None)
        if not self.fresh(kind):
            raise AssertionError(f"the stream ended before a {kind}: {self.over} {self.details}")
        self._taken[kind] += 1
        return self.all(kind)[self._taken[kind] - 1]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition()` is true. Check it after each message. Raises TimeoutError."""
        async with asyncio.timeout(self.timeout), self._news:
            await self._news.wait_for(condition)

    def all(self, kind: str) -> list[Any]:
        """Return all received frames of a kind."""
        return [getattr(frame, kind) for frame in self.frames if frame.WhichOneof("frame") == kind]

    def count(self, kind: str) -> int:
        """Return the number of received frames of a kind."""
        return sum(frame.WhichOneof("frame") == kind for frame in self.frames)

    def fresh(self, kind: str) -> int:
        """Return the number of received frames of a kind that `next` has not returned yet."""
        return self.count(kind) - self._taken[kind]

    async def ended(self) -> str:
        """Wait for the end of the stream, and return the name of its status. Raises TimeoutError."""
        async with asyncio.timeout(self.timeout):
            await asyncio.shield(self.reader)
        assert self.over is not None
        return self.over

    async def leave(self) -> None:
        """Half-close the stream, after which this side cannot send."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()

    async def cut(self) -> None:
        """Cancel the call, and wait for its end."""
        self.cancel()
        await self.ended()

    def field(self) -> str:
        """Return the field that the INVALID_ARGUMENT at the end of the stream names."""
        return field_of(self.status)

    async def _read(self) -> None:
        over = "OK"
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                async with self._news:
                    self.messages.append((len(message.frames), message.ByteSize()))
                    kept = [frame for frame in message.frames if frame.WhichOneof("frame") not in self.forgets]
                    self.frames += kept
                    self.forgotten += len(message.frames) - len(kept)
                    self._news.notify_all()
        except grpc.aio.AioRpcError as error:
            over, self.details = error.code().name, error.details() or ""
            self.status = status_of(error) or self.status
        except asyncio.CancelledError:
            over = "CANCELLED"
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:  # also if this task is cancelled, because someone may be waiting for the end
            self.over = over
            async with self._news:
                self._news.notify_all()


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """Return the status of a failed call with its details, or None if the peer sent no details."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None


def detail_of(status: Any, kind: type[M]) -> M | None:
    """Return the detail of a kind in a status, or None if there is none."""
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            return detail
    return None


def field_of(status: Any) -> str:
    """Return the field that an INVALID_ARGUMENT names."""
    bad = detail_of(status, error_details_pb2.BadRequest)
    return bad.field_violations[0].field if bad is not None else "no BadRequest"
