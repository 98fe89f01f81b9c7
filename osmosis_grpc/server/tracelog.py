"""Writes a debug folder: for each rollout, one file with the lines of ctx.log_event and one with all its events."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import InitRequest, TrajectoryEvent
from osmosis_grpc.protocol.types.events import Logged


def new_folder(parent: str | Path) -> Path:
    """Return the path of a subfolder whose name is the present time in Unix seconds."""
    return Path(parent) / str(int(time.time()))


class DebugLog:
    """Writes the events of ctx.log_event as the Osmosis SDK does: each as a line of FOLDER/ROLLOUT_ID.jsonl.

    Implements EventSink. A rollout id that is not a valid file name on every system is encoded.
    """

    writes_files = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: TrajectoryEvent, /) -> None:
        if isinstance(event.kind, Logged):
            row = {"event": event.kind.name, "rollout_id": event.rollout_id, **event.kind.data}
            with self.path(event.rollout_id).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, default=_plain) + "\n")

    def path(self, rollout_id: str) -> Path:
        """Return the file of a rollout."""
        return self.folder / (f"{rollout_id}.jsonl" if _PLAIN_NAME.fullmatch(rollout_id) else _file_name(rollout_id))


class TraceLog:
    """Writes all events to files, one for each rollout. Implements EventSink."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: TrajectoryEvent, /) -> None:
        row = {
            "time": event.time,
            "rollout_id": event.rollout_id,
            "attempt": event.attempt,
            "number": event.event_number,
            "event": re.sub(r"(?<!^)([A-Z])", r"_\1", type(event.kind).__name__).lower(),
            "data": event.kind,
        }
        with self.path(event.rollout_id).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")

    def path(self, rollout_id: str) -> Path:
        """Return the file of a rollout, whose name is derived from the rollout id."""
        return self.folder / _file_name(rollout_id)


_PLAIN_NAME = re.compile(r"(?!(?i:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))[A-Za-z0-9_][A-Za-z0-9._-]{0,199}(?<!\.)")
"""A rollout id that can be the name of a file on every system."""


def _file_name(rollout_id: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_-]", "_", rollout_id)[:64]
    return f"{slug}-{hashlib.sha256(rollout_id.encode()).hexdigest()[:8]}.jsonl"


def _plain(value: Any) -> Any:
    """Convert a value to one that json can write, without the credentials of a request."""
    if isinstance(value, InitRequest):
        return dataclasses.replace(value.request, api_key=None)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return [None if item != item else item for item in value.tolist()]  # NaN differs from itself
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be written")
