"""Writes the output of a command to stdout, as text or as records. A record is one line with a JSON object.

When stdout has records, the output of agents goes to stderr.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import typer


class Records:
    """Writes records to a stream. Without a stream, it writes text to stdout."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, event: str, **fields: Any) -> None:
        """Write and flush one record. If the reader is gone, drop the record."""
        if self._stream is not None:
            with contextlib.suppress(BrokenPipeError):
                self._stream.write(escaped(json.dumps({"event": event, **fields}, ensure_ascii=False)) + "\n")
                self._stream.flush()

    def say(self, text: str) -> None:
        """Print text, unless stdout has records."""
        if self._stream is None:
            typer.echo(_encodable(text))


def say_error(text: str) -> None:
    """Print text to stderr."""
    typer.echo(_encodable(text), err=True)


def escaped(text: str) -> str:
    """Return JSON with escapes for the characters that are not printable.

    Some of them are commands for a terminal. JSON has such characters only in texts.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@contextlib.contextmanager
def records(enabled: bool) -> Iterator[Records]:
    """Reserve stdout for records until the process ends; without `enabled`, write no records.

    All other output to stdout goes to stderr. This includes the output of C code, child processes and exit handlers.
    """
    if not enabled:
        yield Records(None)
        return
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield Records(stream)
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()
