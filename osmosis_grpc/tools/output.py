"""Reads the output of a program on the event loop, and keeps its end."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Collection

from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.supervise import OnFailure, call_later, job

READ_AGAIN = job("tools.read_output", OnFailure.REPORT, "timer")

PIPE = 1024 * 1024
"""The bytes that a program can write between two reads. The system may allow fewer."""
READS = 2
"""At most this many pieces are read at once."""
PAUSE = 0.02
"""Seconds between two reads. A program that writes endlessly has to wait, so it costs the server little time."""
LAST_OUTPUT = 1.0
"""After a program has ended, its output is read for at most this many seconds."""


class Output:
    """A pipe for the output of a program. Keeps the last `most_bytes` bytes and the last `most_lines` lines.

    Each text of `secrets` is replaced by [key].
    """

    def __init__(self, most_bytes: int, most_lines: int, secrets: Collection[str] = ()) -> None:
        self._bytes, self._lines = most_bytes, most_lines
        self._secrets = [secret.encode() for secret in secrets]
        self._longest = max(map(len, self._secrets), default=0)
        self._kept = b""
        """`most_bytes` plus the longest secret, so that no part of a secret is left at the beginning."""
        self._cut = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._read_end, self._write_end = os.pipe()
        fcntl.fcntl(self._read_end, fcntl.F_SETFL, os.O_NONBLOCK)
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: not on Linux
            fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, PIPE)
        self._listen()

    def take_write_end(self) -> int:
        """Return the descriptor that a program writes to. The caller closes it."""
        taken, self._write_end = self._write_end, -1
        return taken

    async def rest(self) -> None:
        """Wait for the rest of the output of a program that has ended."""
        self._listen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT):
                await self._ended.wait()

    def close(self) -> None:
        self._silence()
        os.close(self._read_end)
        if self._write_end >= 0:  # no program was started
            os.close(self._write_end)

    @property
    def truncated(self) -> bool:
        """Whether older output was dropped."""
        return self._cut or len(self._kept) > self._bytes

    def data(self) -> bytes:
        """Return the last `most_bytes` bytes."""
        kept = self._kept
        for secret in self._secrets:
            kept = kept.replace(secret, b"[key]")
        return kept[self._longest :][-self._bytes :] if self._cut else kept[-self._bytes :]

    def text(self) -> str:
        """Return the last lines. A line whose beginning was dropped is left out, unless it is the only one."""
        return last_lines(self.data(), self._bytes, self._lines, cut=self._cut)

    def _listen(self) -> None:
        self._silence()
        if not self._ended.is_set():
            self._loop.add_reader(self._read_end, self._read)

    def _silence(self) -> None:
        self._loop.remove_reader(self._read_end)
        if self._pause is not None:
            self._pause.cancel()

    def _read(self) -> None:
        self._silence()
        for _ in range(READS):
            try:
                data = os.read(self._read_end, PIPE)
            except BlockingIOError:
                break
            if not data:
                self._ended.set()
                return
            self._keep(data)
        self._pause = call_later(READ_AGAIN, PAUSE, self._listen)

    def _keep(self, data: bytes) -> None:
        most = self._bytes + self._longest
        self._cut = self._cut or len(self._kept) + len(data) > most
        self._kept = data[-most:] if len(data) >= most else (self._kept + data)[-most:]


def last_lines(data: bytes, most_bytes: int, most_lines: int, *, cut: bool) -> str:
    """Return the last lines of an output, with control characters escaped.

    Args:
        data: The output, or its end.
        most_bytes: The most characters of the lines.
        most_lines: The most lines.
        cut: Whether the beginning of the first line may be missing. It is left out then, unless it is the only one.
    """
    kept = data.strip().splitlines()  # unlike str.splitlines(), this splits only at \n and \r
    lines = [line.decode("utf-8", "replace") for line in kept]
    if cut and len(lines) > 1:
        lines = lines[1:]
    return printable("\n".join(lines[-most_lines:]), keep="\n\t")[-most_bytes:]  # escapes are longer
