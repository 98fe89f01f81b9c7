"""The two parts of protobuf's encoding that this project writes itself: length-delimited fields, and numbers.

The bytes of a message are the bytes of its fields in any order. So a field with the same value in many messages is
serialized once, and its bytes are joined with the other fields.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

_LENGTH_DELIMITED = 2
_REMEMBERED = 64
_REMEMBERED_BYTES = 64 * 1024


@lru_cache(4096)
def head(field: int, length: int) -> bytes:
    """Return the tag and the length that begin a length-delimited field. `field` is below 16."""
    return bytes((field << 3 | _LENGTH_DELIMITED,)) + _base128(length)


@lru_cache(4096)
def varint(field: int, value: int) -> bytes:
    """Return the field of a number that is not negative. Returns no bytes for 0, the default. `field` is below 16."""
    return bytes((field << 3,)) + _base128(value) if value else b""


def repeated(field: int, parts: Iterable[bytes]) -> bytes:
    """Return a repeated field of bytes or messages."""
    return b"".join([piece for part in parts for piece in (head(field, len(part)), part)])


def remembered(make: Callable[[T], bytes]) -> Callable[[T], bytes]:
    """Cache the results of `make` for the newest values, by the identity of the value. Such a value must not change.

    The bytes of messages and outcomes are needed twice: for the trainer and for the journal.
    """
    latest: dict[int, tuple[T, bytes]] = {}

    @wraps(make)
    def made(value: T) -> bytes:
        known = latest.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        data = make(value)
        if len(data) <= _REMEMBERED_BYTES:
            if len(latest) >= _REMEMBERED:
                latest.clear()
            latest[id(value)] = value, data
        return data

    return made


def _base128(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
