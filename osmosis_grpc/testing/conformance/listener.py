"""Listens for the side under test: a gRPC service with unary methods, and one method whose streams the cases take."""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import grpc

from osmosis_grpc.network.free_ports import check_free
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.protocol.wire.methods import METHODS
from osmosis_grpc.testing.conformance.protobuf_data import status_message
from osmosis_grpc.testing.conformance.report import Unusable
from osmosis_grpc.testing.raw import RawStream
from osmosis_grpc.testing.raw.connections import OPTIONS

REASONS = {"ABORTED": {"code": "ABORTED", "reason": "ATTACHMENT_REPLACED", "message": "another stream has this id"}}
"""The statuses to which the suite adds a reason when it ends a stream."""
_OPTIONS = (*OPTIONS, ("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 1000))


class Listener:
    """Serves the unary methods of subclasses, and queues the streams that come.

    `streams` is the name of the streaming method. Each of the `addresses` is HOST:PORT; port 0 means any free port.
    """

    def __init__(self, streams: str, *addresses: str) -> None:
        self.address = ""
        """HOST:PORT of the first address."""
        self._method = METHODS[streams]
        self._addresses = addresses
        self._server = grpc.aio.server(options=_OPTIONS)
        self._streams: asyncio.Queue[RawStream] = asyncio.Queue()
        self._ends: dict[RawStream, asyncio.Future[str]] = {}
        self.came = self.silent = False
        """`came` is whether a stream has come. `silent` is whether a case has waited in vain for the first stream.
        Then no other case waits for it."""

    def calls(self) -> Mapping[str, Any]:
        """Return the function of each unary method. Its arguments are the request and the context."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(call, METHODS[name].request.FromString, _serialized)
            for name, call in self.calls().items()
        }
        handlers[self._method.name] = grpc.stream_stream_rpc_method_handler(
            self._serve, self._method.request.FromString, None
        )
        _, service, _ = self._method.path.split("/")
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        bound = [self._bind(address) for address in self._addresses]
        self.address = bound[0]
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for stream in list(self._ends):
            self.finish(stream, "UNAVAILABLE")
        await self._server.stop(0)

    async def next_stream(self) -> RawStream:
        """Return the next live stream."""
        while (stream := await self._streams.get()).over is not None:
            pass
        return stream

    def finish(self, stream: RawStream, status: str) -> None:
        """End a stream with a status."""
        end = self._ends.get(stream)
        if end is not None and not end.done():
            end.set_result(status)

    def _bind(self, address: str) -> str:
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise Unusable(f"the suite cannot listen at {address!r}: it is not HOST:PORT, for example 127.0.0.1:50061")
        try:
            check_free(host.strip("[]"), int(port))
            return f"{host}:{self._server.add_insecure_port(address)}"
        except OSError as error:
            raise Unusable(f"the suite {error}") from None

    async def _serve(self, _requests: Any, context: Any) -> None:
        self.came = True
        stream = RawStream(context, self._method.response)
        end = self._ends[stream] = asyncio.get_running_loop().create_future()
        await self._streams.put(stream)
        try:
            await asyncio.wait({end, stream.reader}, return_when=asyncio.FIRST_COMPLETED)
            if end.done() and end.result() != "OK":
                status = status_message(REASONS.get(end.result(), end.result()))
                context.set_trailing_metadata((_details(status),))
                context.set_code(grpc.StatusCode[end.result()])
                context.set_details(status.message)
        finally:
            stream.reader.cancel()
            del self._ends[stream]


async def refuse(context: Any, status: error_pb2.Status) -> None:
    """End a call with a status and its details."""
    context.set_trailing_metadata((_details(status),))
    code = next(each for each in grpc.StatusCode if each.value[0] == status.code)
    await context.abort(code, status.message)


def _details(status: error_pb2.Status) -> tuple[str, bytes]:
    return "grpc-status-details-bin", status.SerializeToString()


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
