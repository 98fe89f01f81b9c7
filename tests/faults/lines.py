"""Raises an exception at one line of our code, once, in whatever thread comes there first."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import ROOT

Line = tuple[str, int]
"""A file below the repository's root, and a line."""


class Injected(Exception):
    """What is raised."""


@contextmanager
def executed(folders: tuple[str, ...]) -> Iterator[set[Line]]:
    """Collect the lines of functions in these folders that are executed meanwhile."""
    seen: set[Line] = set()
    inside: dict[str, str] = {}

    def local(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            seen.add((inside[frame.f_code.co_filename], frame.f_lineno))
        return local

    def start(frame: Any, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in inside:
            path = Path(name)
            shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            inside[name] = shown if shown.startswith(folders) else ""
        return local if inside[name] and frame.f_code.co_name != "<module>" else None

    with _tracing(start):
        yield seen


@contextmanager
def raising(line: Line) -> Iterator[list[str]]:
    """Raise Injected at a line, once. The list has the function's name after that."""
    file, number = str(ROOT / line[0]), line[1]
    fired: list[str] = []

    def local(frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno == number and not fired:
            fired.append(frame.f_code.co_name)
            raise Injected(f"{line[0]}:{number}")
        return local

    def start(frame: Any, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename == file and not fired else None

    with _tracing(start):
        yield fired


@contextmanager
def _tracing(start: Any) -> Iterator[None]:
    """Trace this thread and those that run: frames that are there already are traced from their next call on."""
    before = sys.gettrace()
    threading.settrace(start)
    sys.settrace(start)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]
