"""The --log folder: one .jsonl file per rollout, in a subfolder whose name is the start time."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_grpc.types import InitRequest, TrajectoryEvent


class TraceLog:
    """Writes events to files. Implements EventSink."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / str(int(time.time()))
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
        """Return the file of a rollout. Its name is made from the rollout id."""
        slug = re.sub(r"[^A-Za-z0-9_-]", "_", rollout_id)[:64]
        mark = hashlib.sha256(rollout_id.encode()).hexdigest()[:8]
        return self.folder / f"{slug}-{mark}.jsonl"


def _plain(value: Any) -> Any:
    """Convert a value that json cannot write to a value that json can write. Leave out the credentials of a request."""
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
