"""Calls the RPCs of one agent server over its current channel."""

import asyncio
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from osmosis_grpc.network.client_calls import DETAILS_KEY, Asking, CallSink, error_of
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.protocol.errors import Unavailable

SERVICE = "/osmosis.rollout.v1.RolloutService/"
CALL_TIMEOUT = 30.0
"""A unary call fails after this many seconds without an answer."""

Answer = TypeVar("Answer", bound=Message)

_CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class NoAnswer(Unavailable):
    """The server did not answer a call. It may or may not have handled it."""


class Calls:
    """The RPCs of RolloutService. `channel` is set while there is a connection."""

    def __init__(self, credentials: Credentials, sink: CallSink) -> None:
        self.channel: grpc.aio.Channel | None = None
        self._metadata = credentials.metadata or None
        self._sink = sink

    async def ask(self, method: str, request: Message, answer: type[Answer], timeout: float = CALL_TIMEOUT) -> Answer:
        """Return the server's answer. Raises NoAnswer, or the CallError with which the server answers."""
        call = Asking(
            self._sink,
            SERVICE + method,
            self._open().unary_unary(SERVICE + method),
            request.SerializeToString(),
            timeout=timeout,
            metadata=self._metadata,
        )
        try:
            return answer.FromString(await call)
        except grpc.aio.AioRpcError as error:
            answered = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
            if error.code() in _CUT and not answered:
                raise NoAnswer(error.details() or error.code().name) from None
            raise error_of(error) from None
        except asyncio.CancelledError:
            raise_if_cancelled()
            raise NoAnswer("the connection was closed") from None

    def stream(self, method: str, request: Message, answer: Any) -> Any:
        """Start a call with a stream of answers. Raises NoAnswer."""
        make = self._open().unary_stream(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return make(request, metadata=self._metadata)

    def _open(self) -> grpc.aio.Channel:
        if self.channel is None:
            raise NoAnswer("there is no connection")
        return self.channel


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled. Do nothing if only the awaited call was cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
