"""Prints lines for people: escapes control characters, wraps texts, and colours lines on a terminal.

Texts of agents, models and tools are not trusted. All of them go through Screen.say(), which disarms their escape
sequences.
"""

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import Records

WIDTH = 80
"""The width if stdout is no terminal."""
NARROWEST, WIDEST = 40, 120
COLOURS = {
    "head": "1",
    "turn": "36",
    "call": "33",
    "reasoning": "2",
    "note": "2",
    "error": "31",
    "bad": "1;31",
    "good": "32",
}
"""Maps the kind of a line to an SGR code. Lines of other kinds have no colour."""


class Line(str):
    """One line of text. Its kind decides its colour."""

    kind = ""

    @classmethod
    def of(cls, text: str, kind: str = "", indent: int = 0) -> "Line":
        """Return a line of a kind, indented by `indent` columns."""
        line = cls(" " * indent + text)
        line.kind = kind
        return line

    def indented(self, columns: int) -> "Line":
        """Return the line, indented further."""
        return Line.of(self, self.kind, columns)


@dataclass(frozen=True, slots=True)
class Screen:
    """Where a command prints text. It prints nothing if stdout is for JSON records."""

    out: Records
    width: int
    """In columns."""
    colours: bool

    @classmethod
    def of(cls, out: Records) -> "Screen":
        """Return the screen of this process.

        It has colours on a terminal, unless NO_COLOR is set or TERM is dumb. A pipe has WIDTH columns, unless COLUMNS
        is set.
        """
        terminal = sys.stdout.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
        sized = terminal or "COLUMNS" in os.environ
        width = shutil.get_terminal_size((WIDTH, 24)).columns if sized else WIDTH
        return cls(out, min(max(width, NARROWEST), WIDEST), terminal and not plain)

    def say(self, line: str, kind: str = "") -> None:
        """Print one line. Control characters in it are escaped."""
        text = printable(line.expandtabs(4))
        code = COLOURS.get(kind or getattr(line, "kind", ""))
        self.out.say(text, code if self.colours and code and text else "")

    def fitted(self, text: str) -> str:
        """Return a text, cut to the width of the screen."""
        text = printable(text.expandtabs(4))
        if _end_of_piece(text, 0, self.width) == len(text):
            return text
        return text[: _end_of_piece(text, 0, self.width - 4)] + " ..."


def say_wrapped(out: Records, text: str) -> None:
    """Print lines of text. On a terminal, wrap them at its width; elsewhere, do not wrap them."""
    if not sys.stdout.isatty():
        out.say(text)
        return
    for line in pieces(text, Screen.of(out).width):
        out.say(line)


def pieces(text: str, width: int) -> Iterator[str]:
    """Wrap lines of text, and yield the pieces. Later pieces of a line are indented 2 columns more than the line."""
    for line in text.split("\n"):
        yield from wrapped(line, width, more=len(line) - len(line.lstrip(" ")) + 2)


def columns(text: str) -> int:
    """Return the columns that a printable text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def wrapped(text: str, width: int, more: int = 2) -> Iterator[str]:
    """Wrap one line of text, and yield pieces of at most `width` columns.

    Later pieces are indented by `more` columns. Lines break at spaces if possible. Control characters are escaped.
    """
    text = printable(text.expandtabs(4))
    start, indent = 0, 0
    while True:
        end = _end_of_piece(text, start, width - indent)
        if end == len(text):
            break
        blank = text.rfind(" ", start, end + 1)
        if blank > start + (end - start) // 2 and text[start:blank].strip():
            end = blank
        yield " " * indent + text[start:end].rstrip()
        start, indent = end, more
        while start < len(text) and text[start] == " ":
            start += 1
    if start < len(text) or not indent:
        yield " " * indent + text[start:]


def _end_of_piece(text: str, start: int, width: int) -> int:
    """Return the end of the longest piece from `start` with at most `width` columns, and at least one character."""
    used = 0
    for at in range(start, len(text)):
        used += _columns(text[at])
        if used > width and at > start:
            return at
    return len(text)


def _columns(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def program() -> str:
    """Return the command that runs this program from the current folder."""
    if shutil.which("osmosis-grpc"):
        return "osmosis-grpc"
    return os.path.relpath(sys.argv[0]) if os.access(sys.argv[0], os.X_OK) else "python -m osmosis_grpc"
