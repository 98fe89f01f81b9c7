"""Reads a program's request to the HTTP proxy of its container, and decides whether it is allowed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
PORTS = (80, 443)
"""Allowed hosts are reached on these ports."""


class Refused(Exception):
    """A connection that is not allowed."""

    def __init__(self, status: str, host: str, why: str) -> None:
        super().__init__(why)
        self.host = host
        body = f"{why}\n".encode()
        self.reply = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        """The answer to the program."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An allowed connection."""

    host: str
    port: int
    reply: bytes
    """The first bytes for the program."""
    head: bytes
    """The first bytes for the host."""


async def asked_of_proxy(reader: asyncio.StreamReader, hosts: Sequence[str]) -> Asked:
    """Return the request of a program: a tunnel (CONNECT), or one plain HTTP request.

    Args:
        reader: The connection of the program.
        hosts: The allowed names. A name that begins with *. allows all names with the same end.

    Raises:
        Refused: The host or its port is not allowed, or the request cannot be read.
    """
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, version = head.partition(b"\r\n")[0].decode("ascii").split(" ")
        split = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = (split.hostname or "").rstrip("."), split.port or (443 if method == "CONNECT" else 80)
        if not host or split.scheme not in ("", "http") or len(head) > HEAD_BYTES:
            raise ValueError
    except (ValueError, EOFError, asyncio.LimitOverrunError, TimeoutError):
        raise Refused("400 Bad Request", "an unknown host", "the proxy reads no such request") from None
    if port not in PORTS or not any(fnmatchcase(host, name.lower()) for name in hosts):
        raise Refused("403 Forbidden", f"{host}:{port}", f"{host}:{port} is not a host that this box may reach")
    if method == "CONNECT":
        return Asked(host, port, b"HTTP/1.1 200 Connection established\r\n\r\n", b"")
    path = split._replace(scheme="", netloc="", fragment="").geturl() or "/"
    lines = [line for line in head.split(b"\r\n")[1:-2] if not _of_proxy(line)]
    # One request for each connection, because the next one could name another host.
    first = [f"{method} {path} {version}".encode(), *lines, b"Connection: close", b"", b""]
    return Asked(host, port, b"", b"\r\n".join(first))


def _of_proxy(line: bytes) -> bool:
    return line.partition(b":")[0].strip().lower() in (b"connection", b"proxy-connection", b"proxy-authorization")
