"""Peers of a later version: the same protos with one more field in each message, frame kind and feature.

A proxy stands between our trainer and our server. Each of them talks to it as to a peer of the later version.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf import any_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    annotation_pb2,
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    event_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
    tokens_pb2,
)

PACKAGE = "osmosis.rollout.v1"
FEATURE = "telepathy"
FIELD, FIELD_NUMBER = "later_field", 900
FRAME, FRAME_NUMBER = "later_frame", 500
ENUM_NUMBER = 900
SIZES = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_ORDER = (
    message_pb2,
    tokens_pb2,
    chat_pb2,
    outcome_pb2,
    rollout_pb2,
    error_pb2,
    annotation_pb2,
    event_pb2,
    control_pb2,
    attach_pb2,
    services_pb2,
)


def _add_fields(messages: Any) -> None:
    for message in messages:
        if message.options.map_entry:
            continue
        kind = FieldDescriptorProto.TYPE_STRING
        message.field.add(name=FIELD, number=FIELD_NUMBER, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _add_fields(message.nested_type)


def later_pool() -> descriptor_pool.DescriptorPool:
    """The descriptors of the later version."""
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for module in _ORDER:
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        if module is attach_pb2:
            file.message_type.append(DescriptorProto(name="LaterFrame"))
        _add_fields(file.message_type)
        for enum in file.enum_type:
            enum.value.add(name=f"{enum.value[0].name.removesuffix('UNSPECIFIED')}LATER", number=ENUM_NUMBER)
        for message in file.message_type:
            if message.name in ("TrainerFrame", "ServerFrame"):
                message.field.add(
                    name=FRAME,
                    number=FRAME_NUMBER,
                    type=FieldDescriptorProto.TYPE_MESSAGE,
                    type_name=f".{PACKAGE}.LaterFrame",
                    label=FieldDescriptorProto.LABEL_OPTIONAL,
                    oneof_index=0,
                )
        pool.Add(file)
    return pool


POOL = later_pool()


def later_class(name: str) -> Any:
    """The class of a message of the later version."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def parts(message: Message) -> Iterator[Message]:
    """A message and all messages in it that belong to the protocol."""
    if message.DESCRIPTOR.file.package != PACKAGE:
        return
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            values = value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            values = value if field.is_repeated else (value,)
        for item in values:
            yield from parts(item)


def fill(message: Message) -> None:
    """Set the field of the later version in a message and in all messages in it. Add the feature to its features."""
    for part in list(parts(message)):
        setattr(part, FIELD, "from the future")
        if "features" in part.DESCRIPTOR.fields_by_name:
            part.features.append(FEATURE)


class LaterProxy:
    """Passes calls on, as if each side were of the later version. Calls fail before lead_to()."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: set[str] = set()
        """Names of methods, and kinds of frames as TrainerFrame.KIND and ServerFrame.KIND, from our peers."""
        self.unknown: list[tuple[str, int]] = []
        """Each UnknownFrame of our peers: the type of the frame that had it, and its number."""
        self._server = grpc.aio.server(options=SIZES)
        self._streams: set[asyncio.Task[Any]] = set()
        self._channel: Any = None

    async def __aenter__(self) -> "LaterProxy":
        self._server.add_generic_rpc_handlers([_Handlers(self)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(None)
        if self._channel is not None:
            await self._channel.close()

    def lead_to(self, target: str) -> None:
        """Pass calls on to this HOST:PORT from now on."""
        self._channel = grpc.aio.insecure_channel(target, options=SIZES)

    def ready(self) -> bool:
        """Whether there is a peer."""
        return self._channel is not None

    def cut(self) -> None:
        """Break all streams."""
        for stream in self._streams:
            stream.cancel()

    def changed(self, message: Message) -> bytes:
        """A message of our peer, as the later version sends it."""
        if "frames" in message.DESCRIPTOR.fields_by_name:
            self._note(message)
        fill(message)
        return message.SerializeToString()

    def _note(self, batch: Any) -> None:
        kinds = {frame.WhichOneof("frame") for frame in batch.frames}
        (name,) = {frame.DESCRIPTOR.name for frame in batch.frames}
        self.unknown += [(name, f.unknown_frame.frame_number) for f in batch.frames if f.HasField("unknown_frame")]
        if not self.seen >= {f"{name}.{kind}" for kind in kinds} and "hello" not in kinds:
            batch.frames.add().heartbeat.SetInParent()
            getattr(batch.frames.add(), FRAME).SetInParent()
        self.seen |= {f"{name}.{kind}" for kind in kinds}

    async def unary(self, method: Any, request: bytes, context: Any) -> bytes:
        """Pass on a call with one answer."""
        call = self._channel.unary_unary(_path(method))
        sent = self.changed(_parse(method.input_type, request))
        answer = await call(sent, metadata=_credential(context), timeout=context.time_remaining())
        return self.changed(_parse(method.output_type, answer))

    async def events(self, method: Any, request: bytes, context: Any) -> Any:
        """Pass on a call with a stream of answers."""
        call = self._channel.unary_stream(_path(method))
        stream = call(self.changed(_parse(method.input_type, request)), metadata=_credential(context))
        async for answer in stream:
            yield self.changed(_parse(method.output_type, answer))

    async def attach(self, method: Any, context: Any) -> None:
        """Pass on the frames of a stream in both directions."""
        call: Any = self._channel.stream_stream(_path(method))(metadata=_credential(context))

        async def pump(read: Callable[[], Any], write: Callable[[bytes], Any], kind: Any) -> None:
            while (message := await read()) is not grpc.aio.EOF:
                await write(self.changed(_parse(kind, message)))

        async def there() -> None:
            await pump(context.read, call.write, method.input_type)
            await call.done_writing()
            await asyncio.Event().wait()

        pumps = [asyncio.ensure_future(there())]
        pumps.append(asyncio.ensure_future(pump(call.read, context.write, method.output_type)))
        self._streams.update(pumps)
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump_ in done:
                pump_.result()
        finally:
            self._streams.difference_update(pumps)
            for pump_ in pumps:
                pump_.cancel()
            call.cancel()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, proxy: LaterProxy) -> None:
        self._proxy = proxy

    def service(self, call: Any) -> Any:
        service, name = call.method.strip("/").split("/")
        method = POOL.FindServiceByName(service).methods_by_name[name]
        proxy = self._proxy
        proxy.seen.add(name)
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(_failing(proxy.ready, lambda _, c: proxy.attach(method, c)))
        if method.server_streaming:

            async def events(request: bytes, context: Any) -> Any:
                async for answer in proxy.events(method, request, context):
                    yield answer

            return grpc.unary_stream_rpc_method_handler(events)
        return grpc.unary_unary_rpc_method_handler(_failing(proxy.ready, lambda r, c: proxy.unary(method, r, c)))


def _failing(ready: Callable[[], bool], handle: Callable[[Any, Any], Any]) -> Any:
    """A handler that passes on the status with which the call failed."""

    async def handler(request: Any, context: Any) -> Any:
        try:
            if not ready():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "there is no peer yet")
            return await handle(request, context)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        except asyncio.CancelledError:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            raise

    return handler


def _path(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _parse(kind: Any, data: bytes) -> Any:
    return message_factory.GetMessageClass(kind).FromString(data)


def _credential(context: Any) -> Any:
    return tuple(pair for pair in context.invocation_metadata() if pair[0] == "authorization") or None
