"""Makes PNG pictures with nothing but the standard library."""

import base64
import random
import struct
import zlib

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 220), "yellow": (230, 210, 40)}


def picture(colours: list[str], seed: int, side: int = 24) -> bytes:
    """Return a PNG with one square for each colour, from left to right. The seed makes its noise."""
    noise = random.Random(seed)
    rows = []
    for _ in range(side):
        row = bytearray([0])  # no filter
        for colour in colours:
            for _ in range(side):
                row += bytes(max(0, min(255, value + noise.randint(-30, 30))) for value in COLOURS[colour])
        rows.append(bytes(row))
    header = struct.pack(">IIBBBBB", side * len(colours), side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(b"".join(rows)))
        + _chunk(b"IEND", b"")
    )


def part(png: bytes) -> dict[str, object]:
    """Return a picture as a part of a message. It travels as bytes, and is a data URL again on the other side."""
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
