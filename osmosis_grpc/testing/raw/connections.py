"""The two ways to get a stream of an attachment: dial the other side, or listen for it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import grpc

from osmosis_grpc.testing.raw.stream import TIMEOUT, RawStream

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""Channel options that allow messages of any size."""
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""A channel option for a connection that no other channel to the same address shares."""
ATTACH = "/osmosis.rollout.v1.RolloutService/Attach"
"""The method that a trainer calls to dial an agent server."""
ACCEPT = "/osmosis.rollout.v1.TrainerService/Accept"
"""The method that an agent server calls to dial a trainer."""


class RawDialler:
    """A peer that opens streams to the other side. It is the base class of RawTrainer and RawAgentServer.

    `method` is the full name of the method. `sends` and `receives` are the types of its messages. `channel` is a
    channel to share. Without it, the peer has a connection of its own.
    """

    def __init__(
        self, address: str, method: str, sends: Any, receives: Any, channel: grpc.aio.Channel | None = None
    ) -> None:
        self.stream: RawStream
        """The newest stream."""
        self._streams: list[RawStream] = []
        self.metadata: Sequence[tuple[str, str]] = ()
        """The headers of each stream, such as authorization."""
        self._owned = None if channel else grpc.aio.insecure_channel(address, options=[OWN_CONNECTION, *OPTIONS])
        self._call: Any = (channel or self._owned).stream_stream(method, None, receives.FromString)  # type: ignore[union-attr]
        self._sends = sends

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._owned is not None:
            for stream in self._streams:  # older versions of grpcio leave them open when the channel is closed
                stream.cancel()
            await self._owned.close()

    def open(self) -> RawStream:
        """Open a stream and send nothing on it."""
        self.stream = RawStream(self._call(metadata=self.metadata), self._sends)
        self._streams.append(self.stream)
        return self.stream

    async def send(self, *frames: Any) -> None:
        """Send frames on the newest stream."""
        await self.stream.send(*frames)


class RawListener:
    """Listens on a free loopback port for streams that the other side opens.

    `method` is the full name of the method. `receives` and `sends` are the types of its messages.
    """

    def __init__(self, method: str, receives: Any, sends: Any) -> None:
        self.address = ""
        """HOST:PORT; empty before the listener is entered."""
        self._method = method
        self._receives = receives
        self._sends = sends
        self._streams: asyncio.Queue[RawStream] = asyncio.Queue()
        self._server = grpc.aio.server(options=OPTIONS)

    async def __aenter__(self) -> "RawListener":
        _, service, method = self._method.split("/")
        handler: Any = grpc.stream_stream_rpc_method_handler(self._serve, self._receives.FromString, None)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(None)

    async def accept(self) -> RawStream:
        """Return the next stream. Raises TimeoutError if none comes."""
        async with asyncio.timeout(TIMEOUT):
            return await self._streams.get()

    async def _serve(self, _requests: Any, context: Any) -> None:
        stream = RawStream(context, self._sends)
        await self._streams.put(stream)
        await asyncio.shield(stream.reader)
