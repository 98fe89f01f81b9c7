"""What several processes did, in one file: a JSON line for each deed, written before what follows from it.

A line is one write to a file opened for appending: it is whole, it stands in the order of the deeds of all
processes, and a SIGKILL of its writer takes nothing back.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "KILL_LOOP_HISTORY"
"""The environment variable that names the file."""


@dataclass(frozen=True, slots=True)
class Line:
    """One deed."""

    number: int
    """Of the line in its file, from 1."""
    t: float
    """Unix time."""
    who: str
    """server, trainer or supervisor."""
    pid: int
    op: str
    id: str
    """The rollout."""
    key: list[Any]
    """What tells this deed from others of its kind: attempt, sample, number."""
    outcome: Any

    def __str__(self) -> str:
        summary = " ".join(str(part) for part in (self.op, self.id, self.key or "", self.outcome or "") if part != "")
        return f"line {self.number}: {self.t:.3f} {self.who}[{self.pid}] {summary}"


class History:
    """Appends to the file, under one name."""

    def __init__(self, path: Path | str, who: str) -> None:
        self._who = who
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, op: str, rollout_id: str = "", *key: Any, outcome: Any = None) -> None:
        """Write a line; it is there when this returns."""
        line = {"t": time.time(), "who": self._who, "pid": os.getpid(), "op": op, "id": rollout_id, "key": key}
        os.write(self._file, json.dumps(line | {"outcome": outcome}).encode() + b"\n")


def read(path: Path | str) -> Iterator[Line]:
    """All lines, in order."""
    with open(path) as file:
        for number, text in enumerate(file, 1):
            yield Line(number=number, **json.loads(text))
