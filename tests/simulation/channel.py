"""The client's side of the simulated network: a channel and its calls, with the interface of grpc.aio."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from tests.simulation.processes import Process
from tests.simulation.wire import CANCELLED, CUT, Call, Connection, Status, error_of

if TYPE_CHECKING:
    from tests.simulation.network import Network

REFUSED: Status = (grpc.StatusCode.UNAVAILABLE, "connection refused in the simulated network", ())
CONNECT_TIMEOUT = 10.0
"""A call fails after so many seconds without a connection."""


class SimulatedChannel:
    """Connects to one address when a call needs it, again after each break."""

    def __init__(self, network: "Network", process: Process, target: str) -> None:
        self._network = network
        self._process = process
        self._target = target
        self._connection: Connection | None = None
        self._closed = False
        self._calls: dict[UnaryCall | StreamCall, None] = {}

    def unary_unary(self, path: str, **serializers: Any) -> Callable[..., "UnaryCall"]:
        """Returns a function that starts a call with one request and one response."""
        return partial(UnaryCall, self, path, serializers)

    def unary_stream(self, path: str, **serializers: Any) -> Callable[..., "StreamCall"]:
        """Returns a function that starts a call with one request and a stream of responses."""
        return partial(StreamCall, self, path, serializers)

    def stream_stream(self, path: str, **serializers: Any) -> Callable[..., "StreamCall"]:
        """Returns a function that starts a call with a stream in each direction."""
        return partial(StreamCall, self, path, serializers, None)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns READY while there is a connection, as far as this side knows."""
        connected = self._connection is not None and self._connection.open_for_client
        return grpc.ChannelConnectivity.READY if connected else grpc.ChannelConnectivity.IDLE

    async def close(self, grace: float | None = None) -> None:
        """Cancels the open calls, and closes the connection."""
        self._closed = True
        for call in list(self._calls):
            call.cancel()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.open_for_client = False
            after = self._network.delay(self._process.host, connection.server.host)
            self._network.loop.call_later(after, connection.cut_server, context=self._network.context)

    def begin(self, call: "UnaryCall | StreamCall", path: str, metadata: Any, timeout: float | None) -> Call | Status:
        """Starts a call on the connection, or on a new one. Returns why there is none."""
        if self._closed:
            return CANCELLED
        connection = self._connection
        if connection is None or not connection.open_for_client:
            server = self._network.listeners.get(self._target)
            if server is None or not server.started:
                return REFUSED
            connection = self._connection = Connection(self._network, self._process, server.process, server.serve)
        self._calls[call] = None
        return Call(connection, path, metadata, timeout)

    def ended(self, call: "UnaryCall | StreamCall") -> None:
        """Forgets an ended call."""
        self._calls.pop(call, None)

    def unreachable(self) -> bool:
        """Returns whether no answer to a new connection can come now."""
        server = self._network.listeners.get(self._target)
        host = self._target.rpartition(":")[0]
        ways = ((self._process.host, host), (host, self._process.host))
        return any(self._network.blocked(*way) for way in ways) or (server is not None and server.process.frozen)

    @property
    def network(self) -> "Network":
        """The network of all channels."""
        return self._network

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as this side knows."""
        return self._connection is not None and self._connection.open_for_client

    @property
    def host(self) -> str:
        """The host of this side."""
        return self._process.host


class _ClientCall:
    """What both kinds of calls share: the connection, the status, and the cancel."""

    def __init__(self, channel: SimulatedChannel, path: str, metadata: Any, timeout: float | None) -> None:
        self._channel = channel
        self._path, self._metadata, self._timeout = path, metadata, timeout
        self._call: Call | None = None
        self._status: Status | None = None
        self._cancelled = False
        self._connecting = False

    def cancel(self) -> bool:
        """Cancels the call. Returns whether it was open."""
        if self.done():
            return False
        self._cancelled = True
        if self._call is not None:
            self._call.end_client(CANCELLED)
        else:
            self._status = CANCELLED
        self._channel.ended(self)  # type: ignore[arg-type]
        return True

    def cancelled(self) -> bool:
        """Returns whether the call ended with CANCELLED."""
        return self._cancelled or (self.status is not None and self.status[0] is grpc.StatusCode.CANCELLED)

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self.status is not None

    @property
    def status(self) -> Status | None:
        """How the call ended; None while it is open."""
        return self._status if self._call is None else self._call.status

    async def _begin(self) -> Call | None:
        """Starts the call, with a new connection if needed. Returns None if the call has ended before."""
        loop = self._channel.network.loop
        if not self._channel.connected:
            if self._channel.unreachable():
                limit = CONNECT_TIMEOUT if self._timeout is None else min(CONNECT_TIMEOUT, self._timeout)
                until = loop.now + limit
                while self._channel.unreachable() and loop.now < until and not self.done():
                    await asyncio.sleep(min(0.5, until - loop.now) + 1e-6)  # the clock is simulated
            await asyncio.sleep(2 * self._channel.network.latency)  # the handshake; the clock is simulated
        if self.done():
            return None
        begun = (
            CUT
            if self._channel.unreachable() and not self._channel.connected
            else self._channel.begin(
                self,
                self._path,
                self._metadata,
                self._timeout,  # type: ignore[arg-type]
            )
        )
        if isinstance(begun, Call):
            self._call = begun
            return begun
        self._status = begun
        return None


class UnaryCall(_ClientCall):
    """A call with one request and one response. It starts at once. Await it to get the response."""

    def __init__(
        self,
        channel: SimulatedChannel,
        path: str,
        serializers: Any,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> None:
        super().__init__(channel, path, metadata, timeout)
        serialize = serializers.get("request_serializer")
        self._read = serializers.get("response_deserializer") or bytes
        data = serialize(request) if serialize else request
        self._task = asyncio.get_running_loop().create_task(self._run(data), name=f"call {path}")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls a function with this call at its end."""
        self._task.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            found = await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._cancelled:
            raise asyncio.CancelledError
        if isinstance(found, bytes):
            return self._read(found)
        raise error_of(found)

    async def _run(self, data: bytes) -> bytes | Status:
        call = await self._begin()
        if call is None:
            assert self.status is not None
            return self.status
        network = self._channel.network
        after = network.lifetime()
        if after is not None:
            network.loop.call_later(after, call.end_client, CUT, context=network.context)
        connection = call.connection
        call.there.send(partial(connection.serve, call))
        call.there.send(data)
        answer = await call.back.get()
        await call.ended
        self._channel.ended(self)
        assert call.status is not None
        return answer if call.status[0] is grpc.StatusCode.OK else call.status


class StreamCall(_ClientCall):
    """A call with a stream of responses. Its requests are one message, or a stream."""

    def __init__(
        self,
        channel: SimulatedChannel,
        path: str,
        serializers: Any,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> None:
        super().__init__(channel, path, metadata, timeout)
        serialize = serializers.get("request_serializer")
        self._read = serializers.get("response_deserializer") or bytes
        self._first = None if request is None else (serialize(request) if serialize else request)
        self._opening: asyncio.Task[None] | None = None

    async def _opened(self) -> Call | None:
        """Starts the call at its first use."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name=f"open {self._path}")
        if not self._opening.done():
            await asyncio.shield(self._opening)
        return self._call

    async def _open(self) -> None:
        call = await self._begin()
        if call is not None:
            call.there.send(partial(call.connection.serve, call))
            if self._first is not None:
                call.there.send(self._first)
                call.there.send(grpc.aio.EOF)

    async def read(self) -> Any:
        """Returns the next message, or EOF. Raises AioRpcError if the call has failed."""
        call = await self._opened()
        message = None if call is None else await call.back.get()
        if message is not None:
            return self._read(message)
        status = self.status
        assert status is not None
        if self._cancelled:
            raise asyncio.CancelledError
        if status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise error_of(status)

    async def write(self, message: bytes) -> None:
        """Sends a message. Raises AioRpcError if the call has failed, InvalidStateError if it has ended."""
        call = await self._opened()
        if call is not None and not self.done():
            await call.there.wait_for_space()
        if self.status is not None:
            if self.status[0] is grpc.StatusCode.OK or self._cancelled:
                raise asyncio.InvalidStateError("the call has ended")
            raise error_of(self.status)
        assert call is not None
        call.there.send(message)

    async def done_writing(self) -> None:
        """Half-closes the call."""
        if self._call is not None and not self.done():
            self._call.there.send(grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        """Returns the status code of the ended call."""
        if self._call is not None:
            await self._call.ended
        assert self.status is not None
        return self.status[0]

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            message = await self.read()
            if message is grpc.aio.EOF:
                return
            yield message
