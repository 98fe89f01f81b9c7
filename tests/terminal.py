"""Pseudo-terminals that commands run on."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator

from tests.waiting import wait_until


class Terminal:
    """A terminal with 24 lines. What a command writes on it is read all the time."""

    def __init__(self, leader: int, follower: int) -> None:
        self.path = os.ttyname(follower)
        self._leader = leader
        self._written = bytearray()
        self._seen = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        """All that was written so far."""
        return self._written.decode(errors="replace").replace("\r\n", "\n")

    def all_text(self) -> str:
        """Return all that was written, once no process has the terminal."""
        self._reader.join()
        return self.text

    def expect(self, text: str) -> str:
        """Wait for a text after the one that was expected before. Return what came between them."""
        wait_until(lambda: text in self.text[self._seen :], f"{text!r} in {self.text!r}")
        at = self.text.index(text, self._seen)
        between, self._seen = self.text[self._seen : at], at + len(text)
        return between

    def send(self, line: str) -> None:
        """Type a line."""
        os.write(self._leader, f"{line}\n".encode())

    def end_input(self) -> None:
        """Type Ctrl-D."""
        os.write(self._leader, b"\x04")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # no process has the terminal any more
            while read := os.read(self._leader, 65536):
                self._written += read


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[Terminal]:
    """Yield a terminal. A process that has it must end before."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    made = Terminal(leader, follower)
    try:
        yield made
    finally:
        os.close(follower)
        made.all_text()
        os.close(leader)
