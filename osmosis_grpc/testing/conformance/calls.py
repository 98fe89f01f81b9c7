"""Calls methods of a service with requests as data. Records what a case sends and receives, for the report."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.protocol.wire.methods import METHODS, Method
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, Data, from_data, status_data, to_data
from osmosis_grpc.testing.raw import stream

MOST_LINES = 200
MOST_CHARS = 1_000
"""A line of the report has at most this many characters."""
Metadata = Sequence[tuple[str, str]]
CALL_LIMIT = 20.0
"""The time limit of a call, in seconds."""


class Trace:
    """The lines of one case in the report. `->` is sent, `<-` is received."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.step = ""
        """The current step of the case."""
        self._began = time.monotonic()
        self._left_out = 0

    def add(self, arrow: str, what: str, data: Any = None) -> None:
        """Add a line: an arrow, the name of a call or of a frame, and its data."""
        if len(self.lines) >= MOST_LINES:
            self._left_out += 1
            return
        text = "" if data is None else " " + json.dumps(_shortened(data), ensure_ascii=False, default=str)
        line = f"{time.monotonic() - self._began:7.3f} {arrow} {what}{text}"
        self.lines.append(line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}...")

    def shown(self) -> list[str]:
        """Return the lines."""
        return [*self.lines, f"({self._left_out} more lines)"] if self._left_out else self.lines


def _shortened(data: Any) -> Any:
    """Shorten the texts and lists in data, because a case may send megabytes."""
    if isinstance(data, str):
        return data if len(data) <= MOST_CHARS else f"{data[:100]}... ({len(data)} characters)"
    if isinstance(data, Mapping):
        return {key: _shortened(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_shortened(each) for each in data[:20]] + ([f"... ({len(data)} elements)"] if len(data) > 20 else [])
    return data


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
        """Return the answer as data: {"code", "response"}, or {"code", "status"} if the call fails.

        For a stream, return its messages as `responses`. The code is OPEN if it is still open after `timeout` seconds.
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
    """Return the status of a failed call with its details, as a frame would have it."""
    status = stream.status_of(error) or status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    return error_pb2.Status.FromString(status.SerializeToString())


def _method(name: str) -> Method:
    if name not in METHODS:
        raise CaseError(f"there is no method {name}")
    return METHODS[name]


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
