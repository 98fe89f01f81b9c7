"""Writes the output of a command to stdout, as text or as records. A record is one line with a JSON object.

When stdout has records, the output of agents goes to stderr. Control characters are escaped: agents, models and tools
write the texts, and some control characters are commands for a terminal.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

import typer


class Records:
    """Writes records to a stream. Without a stream, it writes text to stdout.

    When the reader of stdout has left, say() raises BrokenPipeError, or drops the text with `drops_text`.
    """

    def __init__(self, stream: TextIO | None, *, drops_text: bool = False) -> None:
        self._stream = stream
        self._drops_text = drops_text

    def write(self, event: str, **fields: Any) -> None:
        """Write and flush one record. If the reader is gone, drop the record."""
        if self._stream is not None:
            with contextlib.suppress(BrokenPipeError):
                self._stream.write(escaped(json.dumps({"event": event, **fields}, ensure_ascii=False)) + "\n")
                self._stream.flush()

    def say(self, text: str, colour: str = "") -> None:
        """Print text, unless stdout has records. Control characters are escaped. `colour` is an SGR code."""
        if self._stream is None:
            shown = harmless(text)
            try:
                typer.echo(f"\x1b[{colour}m{shown}\x1b[0m" if colour else shown)
            except BrokenPipeError:
                if not self._drops_text:
                    raise
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), 1)


def say_error(text: str) -> None:
    """Print text to stderr, with escapes for control characters. After send_errors(), send the text instead."""
    if _send_error:
        _send_error[0](text)
    else:
        typer.echo(harmless(text), err=True)


def usage_error(command: str, problem: str) -> NoReturn:
    """Print a problem of the command line and end with exit code 2."""
    say_error(f"{command}: {problem}")
    raise typer.Exit(2)


def send_errors(send: Callable[[str], None]) -> None:
    """Make say_error() call `send` instead, until the process ends."""
    _send_error[:] = [send]


_send_error: list[Callable[[str], None]] = []


def harmless(text: str) -> str:
    """Return lines of text with escapes for the characters that are not printable."""
    from osmosis_grpc.protocol.types.outcome import printable

    return printable(text, keep="\n\t")


def escape_logs() -> None:
    """Escape control characters in the log of a process that does not configure logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Escaped())


class _Escaped(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def escaped(text: str) -> str:
    """Return JSON with escapes for the characters that are not printable.

    Some of these characters are commands for a terminal. In JSON, they occur only in strings.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


@contextlib.contextmanager
def records(enabled: bool, *, drops_text: bool = False) -> Iterator[Records]:
    """Reserve stdout for records until the process ends. Without `enabled`, write no records.

    All other output to stdout then goes to stderr, even that of C code, child processes and exit handlers. With
    `drops_text`, a command without records continues after the reader of stdout has left.
    """
    if not enabled:
        yield Records(None, drops_text=drops_text)
        return
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield Records(stream)
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()
