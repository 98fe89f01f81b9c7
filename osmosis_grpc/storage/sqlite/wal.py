"""Reads SQLite's write-ahead log without SQLite. SQLite silently ignores all frames after a damaged frame.

A frame is a header of 24 bytes, followed by the image of a page. The checksum of a frame continues the checksum of the
frame before. So a sound frame after a damaged frame proves that the log continues.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

HEAD = 32
"""The number of bytes before the first frame."""
FRAME_HEAD = 24
_MASK = 0xFFFFFFFF
_MAGICS = (0x377F0682, 0x377F0683)
Sum = tuple[int, int]


@dataclass
class Log:
    """The committed content of a log."""

    pages: dict[int, bytes] = field(default_factory=dict)
    """The newest image of each page."""
    size: int = 0
    """The number of pages in the database after the last commit, or 0 if there is no commit."""
    problem: str = ""
    """A description of the damage, or empty if there is no damage."""


def read_log(data: bytes, page_size: int) -> Log:
    """Read a log. Leaves out an incomplete last transaction, as SQLite does."""
    found = Log()
    if len(data) < HEAD + FRAME_HEAD + page_size:
        return found
    pages: dict[int, bytes] = {}
    problem = ""
    for index, page, commits, image, sure, what in _frames(data, page_size):
        pages[page] = image
        if what and not problem:
            problem = f"frame {index} of its write-ahead log: {what}"
        if commits and sure:
            found.pages |= pages
            found.size = commits
            found.problem = found.problem or problem
            pages.clear()
    if not found.problem and not _sound_head(data, page_size) and found.pages:
        found.problem = "the header of its write-ahead log"
    return found


def _sound_head(data: bytes, page_size: int) -> bool:
    magic, _, size, _, _, _, *stored = struct.unpack_from(">8I", data)
    return magic in _MAGICS and size == page_size and _sum(data[:24], (0, 0), bool(magic & 1)) == tuple(stored)


def _frames(data: bytes, page_size: int) -> Iterator[tuple[int, int, int, bytes, bool, str]]:
    """Yield the frames of the newest log in the file. Frames of older logs can follow. They have other salts.

    A frame has these values: its index, the number of its page, the number of pages in the database if the frame ends a
    transaction (otherwise 0), the image of the page, whether the frame alone proves that it belongs to the log, and a
    description of its damage.
    """
    sound = _sound_head(data, page_size)
    big = bool(data[3] & 1) if sound else sys.byteorder == "big"
    salts = _pair(data, 16 if sound else HEAD + 8)
    starts = list({_pair(data, 24): 0, _sum(data[:24], (0, 0), big): 0})
    behind = False  # whether the frame before belongs to an older log
    for index, at in enumerate(range(HEAD, len(data) - FRAME_HEAD - page_size + 1, FRAME_HEAD + page_size), 1):
        head = data[at : at + 8]
        image = data[at + FRAME_HEAD : at + FRAME_HEAD + page_size]
        mine, stored = _pair(data, at + 8) == salts, _pair(data, at + 16)
        if behind and not mine:
            starts = [stored]
            continue
        sums = [_sum(head + image, start, big) for start in starts]
        page, commits = struct.unpack(">2I", head)
        if stored in sums:
            behind, starts = False, [stored]
            yield index, page, commits, image, True, "" if mine else "its salts"
            continue
        behind = not mine
        starts = [stored, *sums]
        if not mine:
            continue
        if any((one[0] ^ stored[0]).bit_count() + (one[1] ^ stored[1]).bit_count() == 1 for one in sums):
            yield index, page, commits, image, True, "its checksum"
            continue
        mended = [data for one in sums for data in _flipped(head + image, one, stored, big)]
        if len(mended) == 1:  # otherwise the checksums of the rows detect the damage
            page, commits = struct.unpack(">2I", mended[0][:8])
            image = mended[0][8:]
        yield index, page, commits, image, bool(mended), "one bit" if mended else "its content"


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
    """Return up to two copies of the data. Each copy has one flipped bit and the wanted checksum.

    The checksum is linear, so a flipped bit changes the checksum by an amount that depends on the bit's position. High
    bits of words at many positions change the checksum by the same amount.
    """
    missing = (wanted[0] - computed[0]) & _MASK, (wanted[1] - computed[1]) & _MASK
    # The change of both halves of the checksum when the first, or the second, word of a pair grows by 1.
    first, second = (1, 1), (0, 1)
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
