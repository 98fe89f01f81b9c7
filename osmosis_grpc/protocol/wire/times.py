"""Durations and timestamps as seconds."""

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from osmosis_grpc.protocol.errors import InvalidArgument

_NANOS = 1_000_000_000
_LONGEST = 315_576_000_000
"""The most seconds of a Duration, about 10,000 years, as protobuf defines it."""
_TIMES = range(-62_135_596_800, 253_402_300_800)
"""The seconds of a Timestamp: the years 1 to 9999, as protobuf defines it."""


def duration(seconds: float) -> Duration:
    """Return seconds as a Duration."""
    nanos = round(seconds * _NANOS)
    if 0 <= nanos < _NANOS:  # the usual case
        return Duration(nanos=nanos)
    sign = -1 if nanos < 0 else 1
    whole, rest = divmod(abs(nanos), _NANOS)
    return Duration(seconds=sign * whole, nanos=sign * rest)


def seconds(message: Duration) -> float:
    """Return the seconds of a Duration."""
    return message.seconds + message.nanos / _NANOS


def valid_seconds(message: Duration, field: str, least: float = -_LONGEST) -> float:
    """Return the seconds of a Duration. Raises InvalidArgument if it is below `least` or not valid in protobuf."""
    value = seconds(message)
    if abs(message.nanos) >= _NANOS or not least <= value <= _LONGEST:
        raise InvalidArgument(field, f"{value:g} s is not a time from {least:g} to {_LONGEST} s")
    return value


def checked_seconds(message: Duration, field: str) -> float:
    """Return the seconds of a Duration. Raises InvalidArgument for a Duration that is not valid or not positive."""
    value = valid_seconds(message, field, 0)
    if value == 0:
        raise InvalidArgument(field, "0 s is not a time greater than zero")
    return value


def timestamp(unix: float) -> Timestamp:
    """Return Unix seconds as a Timestamp."""
    whole = math.floor(unix)
    carry, nanos = divmod(round((unix - whole) * _NANOS), _NANOS)
    return Timestamp(seconds=whole + carry, nanos=nanos)


def valid_unix(message: Timestamp, field: str) -> float:
    """Return the Unix seconds of a Timestamp. Raises InvalidArgument if it is not valid in protobuf."""
    if message.seconds not in _TIMES or not 0 <= message.nanos < _NANOS:
        raise InvalidArgument(field, f"{message.seconds} s is not in the years 1 to 9999")
    return unix(message)


def unix(message: Timestamp) -> float:
    """Return the Unix seconds of a Timestamp."""
    return message.seconds + message.nanos / _NANOS
