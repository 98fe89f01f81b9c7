"""Marks received bytes that are not a message, so that the receiver can refuse them with a status."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from osmosis_grpc.protocol.errors import InvalidArgument


class _Undecodable:
    """Bytes that are not a message of the expected type."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def decode_or_mark(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Wrap a deserializer. For bytes that are not a message, the wrapper returns an object that decoded() refuses.

    Without the wrapper grpc.aio would answer UNKNOWN.
    """
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Undecodable(str(error))

    return read


def decoded(request: Any) -> Any:
    """Return the message. Raises InvalidArgument for bytes that are not a message."""
    if isinstance(request, _Undecodable):
        text = f"the bytes are not a message of this method's type: {request.problem}"
        raise InvalidArgument("", text, reason="MALFORMED_FRAME")
    return request
