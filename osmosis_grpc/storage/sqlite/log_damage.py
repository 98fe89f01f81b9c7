"""Notices commits in a write-ahead log that SQLite does not read. See https://sqlite.org/walformat.html.

SQLite stops at the first frame with a wrong checksum and says nothing, because a crash in the middle of a write leaves
such a frame, too. But a crash leaves no complete transaction behind it. If there is one, the log is damaged, and the
caller has to report that commits are lost.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path

_HEAD = 32
_FRAME_HEAD = 24
_FRAMES_AT = 16
"""The offset in the index of the log of the number of frames that SQLite reads."""
_MASK = 0xFFFFFFFF


def log_of(path: Path) -> Path:
    """Return the path of the write-ahead log of a database."""
    return Path(f"{path}-wal")


def has_log(path: Path) -> bool:
    """Return whether a database has a write-ahead log with content."""
    try:
        return log_of(path).stat().st_size > _HEAD
    except FileNotFoundError:
        return False


def log_damage(path: Path) -> str:
    """Describe the damage in a database's write-ahead log. Return an empty text if no commit is lost.

    Call it while a connection that has read something is open, and no other process writes: SQLite has then written
    the index of the log, which says how much of the log is in use.
    """
    with suppress(FileNotFoundError), log_of(path).open("rb") as log, Path(f"{path}-shm").open("rb") as index:
        file, size = log.fileno(), os.fstat(log.fileno()).st_size
        head = os.pread(file, _HEAD, 0)
        if size <= _HEAD + _FRAME_HEAD:
            return ""
        magic, _, page_size, _, *salts, first, second = struct.unpack(">8I", head)
        if _checksum(head[:_FRAME_HEAD], ">" if magic & 1 else "<") != (first, second):
            return "the header of its write-ahead log is damaged"
        (used,) = struct.unpack("=I", os.pread(index.fileno(), 4, _FRAMES_AT))
        step = _FRAME_HEAD + page_size
        for at in range(_HEAD + used * step, size - step + 1, step):
            _, commits, *frame_salts = struct.unpack(">4I", os.pread(file, 16, at))
            if commits and frame_salts == salts:
                return f"frame {used + 1} of its write-ahead log is damaged, and later commits are lost"
    return ""


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    one = two = 0
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two
