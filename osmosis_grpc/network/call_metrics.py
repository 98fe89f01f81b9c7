"""Measures the number, status, duration and bytes of calls, as gRFC A66 defines them.

The client and the server each make a Call, add the bytes of its messages, and end it with a status. Without a CallSink
a Call counts nothing.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import grpc


class CallSink(Protocol):
    """Counts calls. A status is the name of a gRPC code. Sizes are in bytes."""

    def started(self, method: str) -> None:
        """Count a call that began."""

    def ended(self, method: str, status: str, seconds: float, sent: int, received: int) -> None:
        """Count a call that ended."""


class Call:
    """One call, from its start to end(). `method` is SERVICE/METHOD."""

    __slots__ = ("_began", "_method", "_sink", "received", "sent")

    def __init__(self, sink: CallSink | None, method: str) -> None:
        self._sink = sink
        self.sent = self.received = 0
        if sink is not None:
            self._method = method
            self._began = time.monotonic()
            sink.started(method)

    def end(self, status: str) -> None:
        """Count the end of the call, once."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.ended(self._method, status, time.monotonic() - self._began, self.sent, self.received)


class Asking(Call):
    """A client's unary call that sends and receives bytes. It starts at once. Await it to get its reply."""

    __slots__ = ("_call",)

    def __init__(self, sink: CallSink | None, path: str, make: Callable[..., Any], data: bytes, **options: Any) -> None:
        super().__init__(sink, path.lstrip("/"))
        self.sent = len(data)
        self._call = make(data, **options)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._answer().__await__()

    def cancel(self) -> None:
        """Cancel the call: awaiting it raises CancelledError."""
        self._call.cancel()

    async def _answer(self) -> bytes:
        try:
            data: bytes = await self._call
        except grpc.aio.AioRpcError as error:
            self.end(error.code().name)
            raise
        except asyncio.CancelledError:
            self.end("CANCELLED")
            raise
        self.received = len(data)
        self.end("OK")
        return data
