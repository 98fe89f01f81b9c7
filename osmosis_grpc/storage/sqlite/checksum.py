"""Checksums of rows. They detect a row with a changed value, and a row that has the key of another row.

CRC-32 detects every change of one or two bits, and every change within 32 adjacent bits. It misses one of 4 billion
other changes. BLAKE2b with 64 bits takes twice the time (see docs/reliability.md, X9).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any
from zlib import crc32

_number = Struct("<cd").pack
_length = Struct("<cQ").pack
_event = Struct("<15scdcdcdcdcdcQ").pack
EVENTS = b"events.checksum"
"""The `about` of row_sum in the checksums of events."""


def row_sum(about: bytes, values: Iterable[Any]) -> int:
    """Return the checksum of values as SQLite stores them. `about` names the table and the column of the checksum."""
    parts = [about]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            parts += (_length(b"t", len(data)), data)
        elif isinstance(value, bytes):
            parts += (_length(b"b", len(value)), value)
        else:
            parts.append(_number(b"#", value))
    return crc32(b"".join(parts))


def with_sum(about: bytes, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values, followed by their row_sum."""
    values = tuple(values)
    return *values, row_sum(about, values)


def event_sum(position: int, sequence: int, number: int, time: float, kind: int, body: bytes) -> int:
    """Return the same checksum of an event as row_sum, in less time."""
    head = _event(EVENTS, b"#", position, b"#", sequence, b"#", number, b"#", time, b"#", kind, b"b", len(body))
    return crc32(body, crc32(head))
