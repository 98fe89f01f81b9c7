"""A stream call that this side opens, and the loop that reopens it after a break."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import Call, CallSink, cancellable, error_of
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import GRPC, Network
from osmosis_grpc.protocol.errors import CallError, Cancelled, Internal, Unavailable
from osmosis_grpc.protocol.stream.undecodable import decode_or_mark
from osmosis_grpc.supervise import Backoff, System


class DialledStream:
    """The caller's end of a stream call, a Duplex for FrameStream. It is an async context manager.

    Each stream has its own connection. If streams shared connections, the next stream could use one that has died
    silently. Raises Unavailable when a TLS file cannot be read now.
    """

    def __init__(
        self,
        target: str,
        method: str,
        answers: Any,
        credentials: Credentials,
        calls: CallSink | None = None,
        network: Network = GRPC,
    ) -> None:
        try:
            self._channel = network.channel(target, credentials.tls, client_options(grpc__use_local_subchannel_pool=1))
        except ValueError as error:
            raise Unavailable(str(error)) from None
        self._call: Any = self._channel.stream_stream(method)(metadata=credentials.metadata or None)
        self._decode: Callable[[bytes], Any] = decode_or_mark(answers.FromString) or bytes
        self._measured = Call(calls, method.lstrip("/"))

    async def __aenter__(self) -> "DialledStream":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        ended = self._call.done()
        self._call.cancel()
        self._measured.end((await self._call.code()).name if ended else "CANCELLED")
        await self._channel.close()

    @property
    def sent(self) -> int:
        """The bytes of the messages that were written."""
        return self._measured.sent

    @property
    def received(self) -> int:
        """The bytes of the messages that were read."""
        return self._measured.received

    async def done_writing(self) -> None:
        """Half-close the call. The other side reads the remaining messages, and then ends the call."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()

    async def read(self) -> Any:
        """Return the next message, or grpc.aio.EOF at the end. Raises a CallError if the call ended with an error."""
        try:
            data = await cancellable(self._call.read())
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._call.cancelled() and not (task is not None and task.cancelling()):
                raise Cancelled("the other side cancelled the stream") from None
            raise
        if data is grpc.aio.EOF:
            return data
        self._measured.received += len(data)
        return self._decode(data)

    async def write(self, message: bytes) -> None:
        """Send a serialized message. Raises a CallError when the call has ended."""
        self._measured.sent += len(message)
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.InvalidStateError:
            raise Unavailable("the stream has ended") from None


async def redial(
    connect: Callable[[], Awaitable[CallError | None]],
    on_ended: Callable[[CallError | None, float], None],
    *,
    system: System,
    pauses: tuple[float, float] = (0.25, 10.0),
    lasted: float = 1.0,
    is_final: Callable[[CallError | None], bool] = lambda _error: False,
) -> None:
    """Call `connect` repeatedly, with a pause after each call. Returns after an error that `is_final`.

    The pause doubles from the first value of `pauses` up to the second. `connect` runs one stream to its end. Then
    redial calls `on_ended` with the stream's error, or None, and with the upper limit of the next pause in seconds.
    After a stream of more than `lasted` seconds, the pause starts from the first value again. An exception of `connect`
    that is not a CallError is a bug of this side. redial raises it, and the job's supervisor starts redial again.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff(*pauses, system=system)
    while True:
        began = loop.time()
        try:
            error = await connect()
        except CallError as raised:
            error = raised
        except Exception as bug:
            on_ended(Internal(f"this side broke off the stream: {type(bug).__name__}: {bug}"), backoff.limit)
            raise
        if loop.time() - began > lasted:
            backoff.reset()
        on_ended(error, backoff.limit)
        if is_final(error):
            return
        await asyncio.sleep(backoff.next())
