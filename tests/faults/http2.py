"""HTTP/2 frames made by hand, for what no library would send."""

import asyncio
import contextlib
import struct
from collections.abc import Iterable
from contextlib import asynccontextmanager

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
NO_TABLE = struct.pack(">HI", 1, 0)  # SETTINGS_HEADER_TABLE_SIZE 0: what comes back needs no memory to be read
USUAL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/osmosis.rollout.v1.RolloutService/GetServerInfo"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
EMPTY = b"\0\0\0\0\0"
"""A gRPC message of no bytes."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers as literals that are not indexed."""
    return hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*row) for row in headers], huffman=False)


def request(stream: int, *, body: bytes = EMPTY, headers: Iterable[tuple[str, str]] = USUAL, **other: str) -> bytes:
    """A whole call; `other` headers replace the usual ones, underscores read as hyphens; empty ones go."""
    new = {name.replace("_", "-"): value for name, value in other.items()}
    kept = [(name, new.pop(name.lstrip(":"), value)) for name, value in headers]
    rows = [(name, value) for name, value in (*kept, *new.items()) if value]
    return frame(HEADERS, END_HEADERS, stream, block(rows)) + frame(DATA, END_STREAM, stream, body)


class Connection:
    """One connection; what comes is read by the caller, or not at all."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> bool:
        """Send; false when the other side is gone, or has not taken it for 5 s."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(5):
                await self.writer.drain()
        except (OSError, TimeoutError):
            return False
        return True

    async def handled(self, seconds: float = 30.0) -> bool:
        """Wait until what was sent has been handled; false when the connection ends before."""
        mark = b"handled?"
        try:
            async with asyncio.timeout(seconds):
                self.writer.write(frame(PING, 0, 0, mark))
                while True:
                    head = await self.reader.readexactly(9)
                    payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                    if head[3] == PING and payload == mark:
                        return True
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False

    async def frames(self, seconds: float = 5.0) -> list[tuple[int, int, int, bytes]]:
        """Frames up to the end of a stream or of the connection, or for so long; SETTINGS and PING are left out."""
        found = []
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(seconds):
                while True:
                    head = await self.reader.readexactly(9)
                    size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                    payload = await self.reader.readexactly(size)
                    if kind in (SETTINGS, PING, WINDOW):
                        continue
                    found.append((kind, flags, int.from_bytes(head[5:], "big"), payload))
                    if kind in (RST, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
                        return found
        return found


@asynccontextmanager
async def connection(address: str, settings: bytes = NO_TABLE):
    """A connection on which preface and settings were said."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    made = Connection(reader, writer)
    writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))
    try:
        yield made
    finally:
        writer.transport.abort()


def outcome(frames: list[tuple[int, int, int, bytes]]) -> str:
    """How a call ended: grpc-status 3, http 415, RST 7, GOAWAY 1, or nothing."""
    received: dict[str, str] = {}
    for kind, _, _, payload in frames:
        if kind == HEADERS:
            with contextlib.suppress(hpack.HPACKError):
                received |= dict(hpack.Decoder().decode(payload))
        elif kind == RST:
            return f"RST {int.from_bytes(payload, 'big')}"
        elif kind == GOAWAY:
            return f"GOAWAY {int.from_bytes(payload[4:8], 'big')}"
    if "grpc-status" in received:
        return f"grpc-status {received['grpc-status']}"
    return f"http {received[':status']}" if ":status" in received else "nothing"
