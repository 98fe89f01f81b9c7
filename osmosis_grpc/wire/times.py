"""Durations and timestamps as seconds."""

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from osmosis_grpc.errors import InvalidArgument

_NANOS = 1_000_000_000


def duration(seconds: float) -> Duration:
    """Returns seconds as a Duration."""
    nanos = round(seconds * _NANOS)
    if 0 <= nanos < _NANOS:  # the usual case
        return Duration(nanos=nanos)
    sign = -1 if nanos < 0 else 1
    whole, rest = divmod(abs(nanos), _NANOS)
    return Duration(seconds=sign * whole, nanos=sign * rest)


def seconds(message: Duration) -> float:
    """Returns the seconds of a Duration."""
    return message.seconds + message.nanos / _NANOS


def checked_seconds(message: Duration, field: str) -> float:
    """Returns the seconds of a Duration. Raises InvalidArgument for a Duration that is not valid or not positive."""
    value = seconds(message)
    if value <= 0 or abs(message.nanos) >= _NANOS or message.seconds > 315_576_000_000:
        raise InvalidArgument(field, f"{value:g} s is not a time greater than zero")
    return value


def timestamp(unix: float) -> Timestamp:
    """Returns Unix seconds as a Timestamp."""
    whole = math.floor(unix)
    carry, nanos = divmod(round((unix - whole) * _NANOS), _NANOS)
    return Timestamp(seconds=whole + carry, nanos=nanos)


def unix(message: Timestamp) -> float:
    """Returns the Unix seconds of a Timestamp."""
    return message.seconds + message.nanos / _NANOS
