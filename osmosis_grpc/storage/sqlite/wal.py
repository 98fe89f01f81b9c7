"""A write-ahead log of SQLite's, read by ourselves: SQLite drops all that follows a damaged frame, and says nothing.

A frame is the image of a page: 24 bytes of head, then the page. Each has a checksum that goes on from the one
before, so a frame after a damaged one still shows that the log went on.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

HEAD = 32
"""Bytes before the first frame."""
FRAME_HEAD = 24
_MASK = 0xFFFFFFFF
_MAGICS = (0x377F0682, 0x377F0683)
Sum = tuple[int, int]


@dataclass
class Log:
    """What is committed in a log."""

    pages: dict[int, bytes] = field(default_factory=dict)
    """The newest image of each page."""
    size: int = 0
    """Pages of the database after the last commit; 0 without one."""
    problem: str = ""
    """What is damaged; empty where nothing is."""


@dataclass
class _Frame:
    index: int
    page: int
    commits: int
    """Pages of the database, where the frame ends a transaction; else 0."""
    image: bytes
    sure: bool
    """Whether it was meant to be read, whatever follows."""
    what: str
    """What is damaged in it."""


def read_log(data: bytes, page_size: int) -> Log:
    """Read a log. A last transaction that was not written to its end is left out, as SQLite does."""
    found = Log()
    if len(data) < HEAD + FRAME_HEAD + page_size:
        return found
    frames: list[_Frame] = []
    for frame in _frames(data, page_size):
        frames.append(frame)
        if frame.commits and frame.sure:
            for one in frames:
                found.pages[one.page] = one.image
                if one.what and not found.problem:
                    found.problem = f"frame {one.index} of its write-ahead log: {one.what}"
            found.size = frame.commits
            frames.clear()
    if not found.problem and not _sound_head(data, page_size) and found.pages:
        found.problem = "the head of its write-ahead log"
    return found


def _sound_head(data: bytes, page_size: int) -> bool:
    magic, _, size, _, _, _, *stored = struct.unpack_from(">8I", data)
    return magic in _MAGICS and size == page_size and _sum(data[:24], (0, 0), bool(magic & 1)) == tuple(stored)


def _frames(data: bytes, page_size: int) -> Iterator[_Frame]:
    """The frames of the newest log in the file; behind them may stand those of older ones, which have other salts."""
    big = bool(data[3] & 1) if _sound_head(data, page_size) else sys.byteorder == "big"
    salts: tuple[int, ...] = struct.unpack_from(">2I", data, 16)
    if not _sound_head(data, page_size):
        salts = struct.unpack_from(">2I", data, HEAD + 8)
    starts: list[Sum] = [_pair(data, 24)]
    if starts[0] != (computed := _sum(data[:24], (0, 0), big)):
        starts.append(computed)
    behind = False
    """Whether the frame before was none of this log's."""
    for index, at in enumerate(range(HEAD, len(data) - FRAME_HEAD - page_size + 1, FRAME_HEAD + page_size), 1):
        head = data[at : at + 8]
        image = data[at + FRAME_HEAD : at + FRAME_HEAD + page_size]
        mine, stored = struct.unpack_from(">2I", data, at + 8) == salts, _pair(data, at + 16)
        if behind and not mine:
            starts = [stored]
            continue
        sums = [_sum(head + image, start, big) for start in starts]
        page, commits = struct.unpack(">2I", head)
        if stored in sums:
            behind, starts = False, [stored]
            yield _Frame(index, page, commits, image, True, "" if mine else "its salts")
            continue
        behind = not mine
        starts = [stored, *sums]
        if not mine:
            continue
        if any((one[0] ^ stored[0]).bit_count() + (one[1] ^ stored[1]).bit_count() == 1 for one in sums):
            yield _Frame(index, page, commits, image, True, "its checksum")
            continue
        mended = [data for one in sums for data in _flipped(head + image, one, stored, big)]
        if len(mended) == 1:  # else the checksums of the rows say what is wrong
            page, commits = struct.unpack(">2I", mended[0][:8])
            image = mended[0][8:]
        yield _Frame(index, page, commits, image, bool(mended), "one bit" if mended else "its content")


def _pair(data: bytes, at: int) -> Sum:
    first, second = struct.unpack_from(">2I", data, at)
    return first, second


def _sum(data: bytes, start: Sum, big: bool) -> Sum:
    words = iter(struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data))
    one, two = start
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two


def _flipped(data: bytes, computed: Sum, wanted: Sum, big: bool) -> list[bytes]:
    """Data with one bit flipped so that it has the wanted checksum, for each bit of which that is so; few are needed.

    The checksum is linear: a bit changes it by an amount that depends on its place. High bits of a word in many places
    change it by the same.
    """
    missing = (wanted[0] - computed[0]) & _MASK, (wanted[1] - computed[1]) & _MASK
    first, second = (1, 1), (0, 1)  # what 1 more in the first or second word of a pair makes of the checksum's halves
    order = f"{'>' if big else '<'}{len(data) // 4}I"
    words, found = list(struct.unpack(order, data)), []
    for at in range(len(words) - 2, -1, -2):
        for place, (one, two) in ((at, first), (at + 1, second)):
            for bit in range(32):
                change = (words[place] ^ (1 << bit)) - words[place]
                if (one * change) & _MASK == missing[0] and (two * change) & _MASK == missing[1]:
                    found.append(struct.pack(order, *words[:place], words[place] ^ 1 << bit, *words[place + 1 :]))
                    if len(found) == 2:
                        return found
        first = (first[0] + first[1]) & _MASK, (first[0] + 2 * first[1]) & _MASK
        second = (second[0] + second[1]) & _MASK, (second[0] + 2 * second[1]) & _MASK
    return found
