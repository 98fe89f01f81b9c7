"""Calls a method of a service with a request as data, and returns the answer as data."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.protocol.wire.methods import METHODS, Method
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, Data, from_data, status_data, to_data
from osmosis_grpc.testing.conformance.trace import Trace
from osmosis_grpc.testing.raw import stream

Metadata = Sequence[tuple[str, str]]
CALL_LIMIT = 20.0
"""Seconds that a call may take."""


class Calls:
    """Calls over one channel with one credential."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata, trace: Trace) -> None:
        self._channel = channel
        self._metadata = metadata
        self._trace = trace

    async def result(self, name: str, request: Any, timeout: float = CALL_LIMIT) -> dict[str, Any]:
        """Return {"response": message} or {"status": Status}."""
        method = METHODS[name]
        call: Any = self._channel.unary_unary(method.path, _serialized, method.response.FromString)
        try:
            return {"response": await call(request, metadata=self._metadata, timeout=timeout)}
        except grpc.aio.AioRpcError as error:
            return {"status": status_of(error)}

    async def data(self, name: str, request: Mapping[str, Any], timeout: float = CALL_LIMIT) -> Data:
        """Return {"code", "response"} or {"code", "status"} as data. A stream has `responses`, until it ends.

        After `timeout` seconds of a stream, its code is OPEN.
        """
        method = _method(name)
        message = from_data(method.request, request)
        self._trace.add("->", name, request)
        if method.streams_responses:
            answer = await self._stream(method, message, timeout)
        else:
            result = await self.result(name, message, timeout)
            answer = (
                {"code": "OK", "response": to_data(result["response"])}
                if "response" in result
                else {"code": (status := status_data(result["status"]))["code"], "status": status}
            )
        self._trace.add("<-", name, answer)
        return answer

    async def _stream(self, method: Method, message: Any, timeout: float) -> Data:
        made: Any = self._channel.unary_stream(method.path, _serialized, method.response.FromString)
        call = made(message, metadata=self._metadata)
        responses: list[Data] = []
        try:
            async with asyncio.timeout(timeout):
                async for each in call:
                    responses.append(to_data(each))
            return {"code": "OK", "responses": responses}
        except TimeoutError:
            return {"code": "OPEN", "responses": responses}
        except grpc.aio.AioRpcError as error:
            status = status_data(status_of(error))
            return {"code": status["code"], "status": status, "responses": responses}
        finally:
            call.cancel()


def status_of(error: grpc.aio.AioRpcError) -> error_pb2.Status:
    """Return the status of a failed call with its details, as a frame has it."""
    status = stream.status_of(error) or status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    return error_pb2.Status.FromString(status.SerializeToString())


def _method(name: str) -> Method:
    if name not in METHODS:
        raise CaseError(f"there is no method {name}")
    return METHODS[name]


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
