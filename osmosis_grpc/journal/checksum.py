"""A checksum for each row: a row that changes, or stands under another key, is noticed when it is read.

64 bits of BLAKE2b. A 32-bit CRC takes half the time and was not chosen: a damaged file is searched at every
byte for rows, and a chance of 1 in 4 billion for each try is not small there.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Any

_number = Struct("<cd").pack
_length = Struct("<cQ").pack
_event = Struct("<15scdcdcdcdcdcQ").pack
EVENTS = b"events.checksum"
"""What the checksums of events begin with."""


def row_sum(about: bytes, values: Iterable[Any]) -> int:
    """Return the checksum of values as SQLite keeps them; `about` names their table and the column of the checksum."""
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
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little", signed=True)


def event_sum(position: int, sequence: int, number: int, time: float, kind: int, body: bytes) -> int:
    """Return what row_sum gives for an event. Each event is written once and read once: this one is faster."""
    head = _event(
        EVENTS, b"#", position, b"#", sequence, b"#", number, b"#", time, b"#", kind, b"b", len(body)
    )  # fmt: skip
    return int.from_bytes(blake2b(head + body, digest_size=8).digest(), "little", signed=True)
