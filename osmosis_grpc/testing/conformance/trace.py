"""Records what a case sends and gets, for the report."""

import json
import time
from collections.abc import Mapping
from typing import Any

MOST_LINES = 200
MOST_CHARS = 1_000
"""A line of the report has at most so many characters."""


class Trace:
    """The lines of one case. `->` is sent, `<-` is received."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.step = ""
        """The step that the case is at."""
        self._began = time.monotonic()
        self._left_out = 0

    def add(self, arrow: str, what: str, data: Any = None) -> None:
        """Add a line: an arrow, the name of a call or of a frame, and its data."""
        if len(self.lines) >= MOST_LINES:
            self._left_out += 1
            return
        text = "" if data is None else " " + json.dumps(_shortened(data), ensure_ascii=False, default=str)
        line = f"{time.monotonic() - self._began:7.3f} {arrow} {what}{text}"
        self.lines.append(line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}...")

    def shown(self) -> list[str]:
        """Return the lines."""
        return [*self.lines, f"({self._left_out} more lines)"] if self._left_out else self.lines


def _shortened(data: Any) -> Any:
    """Return data whose texts and lists are cut: a case may send megabytes."""
    if isinstance(data, str):
        return data if len(data) <= MOST_CHARS else f"{data[:100]}... ({len(data)} characters)"
    if isinstance(data, Mapping):
        return {key: _shortened(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_shortened(each) for each in data[:20]] + ([f"... ({len(data)} elements)"] if len(data) > 20 else [])
    return data
