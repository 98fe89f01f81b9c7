"""Decodes the cells in a page of a SQLite table. Each cell is one row. See https://sqlite.org/fileformat.html."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_INTEGERS = (0, 1, 2, 3, 4, 6, 8)
"""The number of bytes of an integer, by its serial type."""


class Cell(NamedTuple):
    """One row."""

    rowid: int
    values: list[Any]
    size: int
    """The number of bytes that the row takes in the page."""


def pointers(page: bytes, head: int = 0) -> list[int]:
    """Return the offsets of the cells, which follow the page's header."""
    count = int(struct.unpack_from(">H", page, head + 3)[0])
    first = head + (12 if page[head] in (2, 5) else 8)
    count = min(count, (len(page) - first) // 2)
    return [at for (at,) in struct.iter_unpack(">H", page[first : first + 2 * count]) if first <= at < len(page) - 3]


def accounted(page: bytes, sizes: Sequence[int]) -> bool:
    """Return whether cells of these sizes, with the free blocks, fill the space in a leaf that its header states."""
    free, count, content = struct.unpack_from(">3H", page, 1)
    holes, seen = page[7], 0
    while free and seen < len(page):
        if free + 4 > len(page):
            return False
        following, size = struct.unpack_from(">2H", page, free)
        holes += size
        if following and following <= free:
            return False
        free, seen = following, seen + 4
    return count == len(sizes) and (content or 65536) + holes + sum(sizes) == len(page)


def read(page: bytes, at: int, other: Callable[[int], bytes], page_size: int) -> Cell | None:
    """Return the row at an offset, or None if there is no row. `other` returns an overflow page by number."""
    try:
        size, body = _varint(page, at)
        rowid, body = _varint(page, body)
        here = _local(size, page_size)
        end = body + here + (4 if here < size else 0)
        if not 2 <= size <= 1 << 31 or end > page_size or not 2 <= page[body] < 128:
            return None
        parts, left = [page[body : body + here]], size - here
        types, head = _types(parts[0])
        if head + sum(map(_bytes, types)) != size:
            return None
        link = page[end - 4 : end]
        while left > 0:
            data = other(int.from_bytes(link, "big"))
            if len(data) < page_size:
                return None
            parts.append(data[4 : 4 + min(left, page_size - 4)])
            left -= page_size - 4
            link = data[:4]
        values = _values(types, b"".join(parts)[head:])
    except (IndexError, ValueError, struct.error, OverflowError, OSError):
        return None
    return Cell(rowid if rowid < 1 << 63 else rowid - (1 << 64), values, max(4, end - at))


def _local(size: int, page_size: int) -> int:
    """Return how many bytes of a row are in its leaf. Overflow pages have the other bytes."""
    most = page_size - 35
    if size <= most:
        return size
    least = (page_size - 12) * 32 // 255 - 23
    kept = least + (size - least) % (page_size - 4)
    return kept if kept <= most else least


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 127
        if byte < 128:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _types(record: bytes) -> tuple[list[int], int]:
    """Return the serial types of a record, and the offset of its values.

    Reads this offset from one byte, which is enough for few columns. Raises ValueError or IndexError if the bytes are
    not a record.
    """
    end, at, types = record[0], 1, []
    while at < end:
        kind, at = _varint(record, at)
        types.append(kind)
    if at != end or 10 in types or 11 in types:
        raise ValueError("not a record")
    return types, end


def _bytes(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return 8 if kind == 7 else 0 if kind > 7 else _INTEGERS[kind]


def _values(types: Sequence[int], body: bytes) -> list[Any]:
    values: list[Any] = []
    at = 0
    for kind in types:
        data = body[at : at + _bytes(kind)]
        at += len(data)
        if kind >= 12:
            values.append(data.decode("utf-8", "replace") if kind % 2 else data)
        elif kind == 0:
            values.append(None)
        elif kind == 7:
            values.append(struct.unpack(">d", data)[0])
        elif kind >= 8:
            values.append(kind - 8)
        else:
            values.append(int.from_bytes(data, "big", signed=True))
    return values
