"""Sends HTTP/2 frames that no gRPC library would send, and tells how the call ended. Needs hpack and hyperframe."""

import asyncio
import contextlib
import struct
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.protobuf_data import CaseError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TYPES = {
    "DATA": 0,
    "HEADERS": 1,
    "PRIORITY": 2,
    "RST_STREAM": 3,
    "SETTINGS": 4,
    "PUSH_PROMISE": 5,
    "PING": 6,
    "GOAWAY": 7,
    "WINDOW_UPDATE": 8,
    "CONTINUATION": 9,
}
FLAGS = {"END_STREAM": 1, "ACK": 1, "END_HEADERS": 4, "PADDED": 8}
USUAL = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/osmosis.rollout.v1.RolloutService/GetServerInfo",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}
"""The usual headers of a call. A case can replace some; an empty value leaves a header out."""
WAIT = 5.0


async def exchange(target: str, frames: list[Mapping[str, Any]], trace: Trace) -> str:
    """Send frames and return how the call ended.

    The result is a text such as `grpc-status 3`, `http 415`, `RST_STREAM`, `GOAWAY`, `PING` (answered), `closed` or
    `open`.
    """
    try:
        import hpack
    except ModuleNotFoundError:
        raise MissingExtraError("the conformance suite", "conformance") from None

    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        encoder = hpack.Encoder()
        writer.write(PREFACE + _frame({"type": "SETTINGS"}, encoder))
        for each in frames:
            for _ in range(each.get("times", 1)):
                writer.write(_frame(each, encoder))
            trace.add("->", "http2", each)
        with contextlib.suppress(OSError):
            async with asyncio.timeout(WAIT):
                await writer.drain()
        ended = await _end(reader, writer, hpack.Decoder())
        trace.add("<-", f"http2 {ended}")
        return ended
    finally:
        writer.transport.abort()


def _frame(given: Mapping[str, Any], encoder: Any) -> bytes:
    """Return the bytes of a frame, given as {type, flags, stream, headers | hex | message} or as {raw: hex}."""
    if "raw" in given:
        return bytes.fromhex(given["raw"].replace(" ", ""))
    if given.get("type") not in TYPES:
        raise CaseError(f"a frame of HTTP/2 has a type: one of {', '.join(TYPES)}")
    payload = bytes.fromhex(given.get("hex", "").replace(" ", ""))
    if "headers" in given:
        rows = [(name, str(value)) for name, value in (USUAL | given["headers"]).items() if value != ""]
        payload = encoder.encode(rows)
    elif "message" in given:
        message = bytes.fromhex(given["message"].replace(" ", ""))
        payload = b"\0" + struct.pack(">I", len(message)) + message
    flags = sum(FLAGS[name] for name in given.get("flags", ()))
    size = given.get("size", len(payload))
    return (
        struct.pack(">I", size)[1:] + struct.pack(">BBI", TYPES[given["type"]], flags, given.get("stream", 0)) + payload
    )


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: Any) -> str:
    try:
        async with asyncio.timeout(WAIT):
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind == TYPES["SETTINGS"] and not flags & FLAGS["ACK"]:
                    writer.write(_frame({"type": "SETTINGS", "flags": ["ACK"]}, None))
                elif kind == TYPES["PING"] and flags & FLAGS["ACK"]:
                    return "PING"
                elif kind == TYPES["HEADERS"]:
                    headers = dict(decoder.decode(payload))
                    if "grpc-status" in headers:
                        return f"grpc-status {headers['grpc-status']}"
                    if flags & FLAGS["END_STREAM"] or headers.get(":status", "200") != "200":
                        return f"http {headers.get(':status', '?')}"
                elif kind == TYPES["RST_STREAM"]:
                    return "RST_STREAM"
                elif kind == TYPES["GOAWAY"]:
                    return "GOAWAY"
    except TimeoutError:
        return "open"
    except (OSError, asyncio.IncompleteReadError):
        return "closed"
