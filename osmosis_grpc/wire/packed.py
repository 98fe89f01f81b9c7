"""The little of protobuf's encoding that is written by hand: what stands before a field of bytes."""

from collections.abc import Iterable
from functools import lru_cache

_LENGTH_DELIMITED = 2


@lru_cache(4096)
def head(number: int, length: int) -> bytes:
    """What stands before a length-delimited field: its tag and its length. Numbers below 16."""
    if length < 0x80:
        return bytes((number << 3 | _LENGTH_DELIMITED, length))
    out = bytearray((number << 3 | _LENGTH_DELIMITED,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def repeated(number: int, parts: Iterable[bytes]) -> bytes:
    """A repeated field of bytes or messages."""
    return b"".join([piece for part in parts for piece in (head(number, len(part)), part)])
