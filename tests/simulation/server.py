"""The server's side of the simulated network: a server and its calls, with the interface of grpc.aio."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import grpc

from tests.simulation.processes import Process
from tests.simulation.wire import OK, Call, Status

if TYPE_CHECKING:
    from tests.simulation.network import Network


class _Details(NamedTuple):
    """The method of a call, for grpc's handlers."""

    method: str
    invocation_metadata: Any


async def _no_iterator() -> AsyncIterator[Any]:
    raise NotImplementedError("the product reads streams with context.read()")
    yield


_NO_ITERATOR = _no_iterator()


class SimulatedServer:
    """Runs the handlers of the calls that arrive. The handlers are those that the product registers."""

    def __init__(self, network: "Network", process: Process) -> None:
        self.process = process
        self.address = ""
        self.started = False
        self._network = network
        self._handlers: list[Any] = []
        self._calls: dict[Call, None] = {}
        self._stopped = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Adds handlers."""
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> None:
        """Listens for the other workers, at the name of a socket."""
        self.address = address
        self._network.listeners[address] = self

    async def start(self) -> None:
        """Answers calls from now on."""
        self.started = True

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls. Open calls have `grace` seconds to end; then they are cancelled."""
        self.started = False
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]
        until = self._network.loop.now + (grace or 0.0)
        while self._calls and self._network.loop.now < until:
            await asyncio.sleep(min(0.05, until - self._network.loop.now) + 1e-6)  # the clock is simulated
        for call in list(self._calls):
            call.finish((grpc.StatusCode.CANCELLED, "the server stops", ()))
            if call.serving is not None:
                call.serving.cancel()
        for connection in list(self._network.connections):
            if connection.server is self.process and connection.serve == self.serve:
                connection.cut()
        self._stopped.set()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Waits for stop()."""
        await self._stopped.wait()
        return True

    def serve(self, call: Call) -> None:
        """Starts the handler of a call that has arrived."""
        if not self.started:
            call.finish((grpc.StatusCode.UNAVAILABLE, "the server has stopped", ()))
            return
        details = _Details(call.method, call.metadata)
        handler = next((found for one in self._handlers if (found := one.service(details)) is not None), None)
        if handler is None:
            call.finish((grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ()))
            return
        self._calls[call] = None
        call.serving = self.process.start(self._handle(call, handler), f"serve {call.method}")
        call.serving.add_done_callback(lambda _: self._calls.pop(call, None))

    async def _handle(self, call: Call, handler: Any) -> None:
        context = ServerContext(call, self._network)
        status: Status = OK
        try:
            if handler.stream_unary is not None:
                call.back.send(await handler.stream_unary(_NO_ITERATOR, context))
            elif inspect.isasyncgenfunction(handler.stream_stream):
                async for response in handler.stream_stream(_NO_ITERATOR, context):
                    await context.write(response)
            else:
                await handler.stream_stream(_NO_ITERATOR, context)
        except grpc.aio.AbortError:
            assert context.status is not None
            status = context.status
        except asyncio.CancelledError:
            status = (grpc.StatusCode.CANCELLED, "the handler was cancelled", ())
        except Exception as error:
            status = (grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        call.finish(status)


class ServerContext:
    """The context of a call on its server."""

    def __init__(self, call: Call, network: "Network") -> None:
        self._call = call
        self._network = network
        self.status: Status | None = None

    def peer(self) -> str:
        """Returns the address of the caller, such as ipv4:127.0.0.1:4711."""
        return f"ipv4:{self._call.connection.client.host}:9"

    def invocation_metadata(self) -> Any:
        """Returns the metadata of the call."""
        return self._call.metadata

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline."""
        deadline = self._call.deadline
        return None if deadline is None else max(0.0, deadline - self._network.loop.now)

    def code(self) -> grpc.StatusCode | None:
        """Returns the code of abort()."""
        return self.status[0] if self.status is not None else None

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call with a status."""
        self.status = (code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Does nothing: the simulated network has no initial metadata."""

    async def read(self) -> Any:
        """Returns the next message, or EOF."""
        message = await self._call.there.get()
        return grpc.aio.EOF if message is None else message

    async def write(self, message: bytes) -> None:
        """Sends a message when there is space."""
        await self._call.back.wait_for_space()
        self._call.back.send(message)
