"""Calls any method with one request."""

from collections.abc import AsyncGenerator
from typing import Any

import grpc
from google.protobuf.message import Message

from osmosis_grpc.network.client_calls import Metadata, error_of
from osmosis_grpc.protocol.wire.methods import Method


async def replies(
    channel: grpc.aio.Channel, method: Method, request: Message, *, timeout: float | None, metadata: Metadata = ()
) -> AsyncGenerator[Message, None]:
    """Yield the responses to one request: one, or those of a stream. Raises CallError."""
    kind = channel.unary_stream if method.streams_responses else channel.unary_unary
    call: Any = kind(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )(request, timeout=timeout, metadata=tuple(metadata) or None)
    try:
        if method.streams_responses:
            async for response in call:
                yield response
        else:
            yield await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        call.cancel()
