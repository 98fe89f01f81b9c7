"""Edits the text of a file. Every byte outside of an edit stays: line ends, tabs, a byte order mark."""

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types.jsontext import repaired
from osmosis_grpc.tools.sandbox.port import SandboxFileError

BOM = "\ufeff"
CONTEXT = 4
"""The lines before and after an edit that are shown."""


def decoded(path: str, data: bytes) -> str:
    """Return the text of a file. A byte that is no UTF-8 survives encoded(). Raises SandboxFileError."""
    if b"\0" in data:
        raise SandboxFileError(f"{path} is not a text file")
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """Return the bytes of a text of decoded()."""
    return text.encode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. Only a newline ends a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def replaced(text: str, old: str, new: str) -> tuple[str, int]:
    """Return the text with `old` replaced, which it has to have exactly once, and the line of the edit, from 1.

    A newline in `old` also fits the line end of a file whose lines end with CR LF. Raises ToolArgumentError.
    """
    if not old:
        raise ToolArgumentError("old_str: it is empty; give the text to replace")
    if old not in text and _crlf(text) and "\n" in old:
        old, new = _with_crlf(old), _with_crlf(new)
    count = text.count(old)
    if count != 1:
        places = [text.count("\n", 0, at) + 1 for at in _positions(text, old)]
        found = f"it is in the file {count} times, in the lines {places}" if count else "it is not in the file"
        raise ToolArgumentError(f"old_str: {found}; give a text that is there exactly once")
    at = text.index(old)
    return text[:at] + new + text[at + len(old) :], text.count("\n", 0, at) + 1


def inserted(text: str, line: int, new: str) -> tuple[str, int]:
    """Return the text with new lines after a line, and the number of the first new line. Line 0 is the beginning.

    Raises ToolArgumentError.
    """
    mark, rest = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    lines = lines_of(rest)
    if not 0 <= line <= len(lines):
        raise ToolArgumentError(f"insert_line: {line} is not from 0 to {len(lines)}, the number of lines")
    end = "\r\n" if _crlf(text) else "\n"
    added = _with_crlf(new) if end == "\r\n" else new
    before, after = "".join(lines[:line]), "".join(lines[line:])
    if before and not before.endswith("\n"):  # the last line has no end, so the new last line gets none
        return mark + before + end + added, line + 1
    if not added.endswith("\n"):
        added += end
    return mark + before + added + after, line + 1


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers."""
    shown = (repaired(line.rstrip("\n").rstrip("\r")) for line in lines)
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))


def context_of(text: str, line: int, count: int) -> str:
    """Return the numbered lines around an edit of `count` lines."""
    lines = lines_of(text.removeprefix(BOM))
    first = max(1, line - CONTEXT)
    return numbered(lines[first - 1 : line + count + CONTEXT - 1], first)


def _positions(text: str, part: str) -> list[int]:
    found: list[int] = []
    at = text.find(part)
    while at >= 0 and len(found) < 10:
        found.append(at)
        at = text.find(part, at + len(part))
    return found


def _crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\n") == text.count("\r\n")


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")
