"""The little of protobuf's encoding that is written by hand: fields before which a length stands, and numbers.

A message is its fields in any order, so what is the same in many messages is made once, and
joined with what is not.
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
    """What stands before a length-delimited field: its tag and its length. Fields below 16."""
    return bytes((field << 3 | _LENGTH_DELIMITED,)) + _base128(length)


@lru_cache(4096)
def varint(field: int, value: int) -> bytes:
    """A field of a number that is not negative; nothing for 0, which need not be told. Fields below 16."""
    return bytes((field << 3,)) + _base128(value) if value else b""


def repeated(field: int, parts: Iterable[bytes]) -> bytes:
    """A repeated field of bytes or messages."""
    return b"".join([piece for part in parts for piece in (head(field, len(part)), part)])


def remembered(make: Callable[[T], bytes]) -> Callable[[T], bytes]:
    """`make`, with what it made of the latest values at hand: of values that nobody changes any more.

    What a chat says and how a rollout ended goes to the trainer and into the journal.
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
