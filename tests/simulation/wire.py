"""The calls and connections of the simulated network.

A Connection joins the channel of one process with the server of another. A Call is one RPC on it, with a Pipe for
each direction. Messages of a pipe keep their order. Pipes have different delays, so calls overtake each other.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from tests.simulation.processes import Process
from tests.simulation.taps import Seen

if TYPE_CHECKING:
    from tests.simulation.network import Network

CAPACITY = 64
"""A sender waits while so many of its messages are unread."""
Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]
OK: Status = (grpc.StatusCode.OK, "", ())
CUT: Status = (grpc.StatusCode.UNAVAILABLE, "the simulated connection broke", ())
CANCELLED: Status = (grpc.StatusCode.CANCELLED, "the call was cancelled", ())


def error_of(status: Status) -> grpc.aio.AioRpcError:
    """Returns the exception of a failed call."""
    code, text, trailers = status
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=text)


class Tapped(NamedTuple):
    """A message that the taps have read."""

    data: bytes
    seen: Seen


class Pipe:
    """One direction of a call. Each message arrives after a delay, and waits while the direction is blocked."""

    def __init__(self, call: "Call", sender: Process, receiver: Process, *, request: bool) -> None:
        self._network = call.connection.network
        self._call, self._request = call, request
        self._sender, self._receiver = sender, receiver
        self._inbox: deque[Any] = deque()
        self._on_way: deque[Any] = deque()
        self._free_at = 0.0
        self._held = 0
        """How many messages on their way are due."""
        self._dead = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def send(self, item: Any) -> None:
        """Puts a message, or a function to call at its arrival, on its way."""
        if self._dead:
            return
        loop, taps = self._network.loop, self._network.taps
        if type(item) is bytes and not self._sender.dead:
            call, names = self._call, (self._sender.name, self._receiver.name)
            seen = taps.sent(call, *names, call.method, request=self._request, data=item)
            if seen is not None:
                item = Tapped(item, seen)
        self._free_at = max(self._free_at, loop.now + self._network.delay(self._sender.host, self._receiver.host))
        self._on_way.append(item)
        loop.call_at(self._free_at, self._arrive, context=self._network.context)

    def retry(self) -> None:
        """Delivers the messages that a partition has held back."""
        while self._held and not self._dead:
            if self._network.blocked(self._sender.host, self._receiver.host):
                self._network.hold(self)
                return
            self._held -= 1
            self._deliver(self._on_way.popleft())

    def _arrive(self) -> None:
        if not self._dead:
            self._held += 1
            self.retry()

    def _deliver(self, item: Any) -> None:
        if callable(item):
            item()
        else:
            self._inbox.append(item)
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait_for_space(self) -> None:
        """Waits until fewer than CAPACITY messages are unread."""
        while not self._dead and len(self._inbox) + len(self._on_way) >= CAPACITY:
            self._writer = self._network.loop.create_future()
            await self._writer

    async def get(self) -> Any:
        """Returns the next message; None when the pipe is closed and empty."""
        while not self._inbox:
            if self._dead:
                return None
            self._reader = self._network.loop.create_future()
            await self._reader
        item = self._inbox.popleft()
        if type(item) is Tapped:
            self._network.taps.arrived(item.seen)
            item = item.data
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        return item

    def close(self) -> None:
        """Drops what is on its way, and wakes the reader and the writer."""
        self._dead = True
        self._on_way.clear()
        self._wake_reader()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


class Call:
    """One RPC. The client's half is its own; the server's half is a ServerCall."""

    def __init__(self, connection: "Connection", method: str, metadata: Any, timeout: float | None) -> None:
        network, client, server = connection.network, connection.client, connection.server
        self.connection = connection
        self.method = method
        self.metadata = tuple(metadata or ())
        self.deadline = None if timeout is None else network.loop.now + timeout
        self.there = Pipe(self, client, server, request=True)
        self.back = Pipe(self, server, client, request=False)
        self.status: Status | None = None
        """How the call ended, as the client knows it."""
        self.ended: asyncio.Future[None] = network.loop.create_future()
        self.serving: asyncio.Task[None] | None = None
        self.server_gone = False
        """Whether the server's half has ended."""
        connection.calls[self] = None
        self._timer = None
        if timeout is not None:
            late: Status = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())
            self._timer = network.loop.call_later(timeout, self.end_client, late, context=network.context)

    def end_client(self, status: Status, *, notify: bool = True) -> None:
        """Ends the client's half. With `notify`, the server's half learns of it after a delay."""
        if self.status is not None:
            return
        self._end(status)
        self.back.close()
        if notify and not self.server_gone:
            self.there.send(self.end_server)
        elif self.server_gone:
            self.connection.calls.pop(self, None)

    def _end(self, status: Status) -> None:
        self.status = status
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        self.connection.network.taps.ended(self, status[0].name)

    def end_server(self) -> None:
        """Ends the server's half: its handler is cancelled, as grpc.aio does when the client has left."""
        if self.server_gone:
            return
        self.server_gone = True
        if self.serving is not None and not self.serving.done():
            self.connection.server.call(self.serving.cancel)
        self.there.close()
        if self.status is not None:
            self.connection.calls.pop(self, None)

    def finish(self, status: Status) -> None:
        """Ends the call with the status of its handler. The client learns of it after the messages before it."""
        if self.server_gone:
            return
        self.server_gone = True
        self.there.close()
        self.back.send(lambda: self._finished(status))

    def _finished(self, status: Status) -> None:
        if self.status is None:
            self._end(status)
        self.back.close()
        self.connection.calls.pop(self, None)


class Connection:
    """A connection of a channel, until one side closes it or it is cut."""

    def __init__(self, network: "Network", client: Process, server: Process, serve: Callable[[Call], None]) -> None:
        self.network = network
        self.client, self.server = client, server
        self.serve = serve
        self.calls: dict[Call, None] = {}
        self.open_for_client = self.open_for_server = True
        network.connections[self] = None

    def cut_client(self) -> None:
        """Breaks the client's end. Its calls fail with UNAVAILABLE."""
        self.open_for_client = False
        for call in list(self.calls):
            call.end_client(CUT, notify=False)
        self._forget()

    def cut_server(self) -> None:
        """Breaks the server's end. The handlers of its calls are cancelled."""
        self.open_for_server = False
        for call in list(self.calls):
            call.end_server()
        self._forget()

    def cut(self) -> None:
        """Breaks both ends."""
        self.cut_client()
        self.cut_server()

    def _forget(self) -> None:
        if not (self.open_for_client or self.open_for_server):
            self.network.connections.pop(self, None)
