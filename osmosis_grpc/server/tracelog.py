"""The --log folder: one .jsonl file per rollout, under a folder named for the time of the start."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from osmosis_grpc.types import InitRequest, TrajectoryEvent


class TraceLog:
    """An EventSink. A file name is derived from the rollout id."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / str(int(time.time()))
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: TrajectoryEvent, /) -> None:
        row = {
            "time": event.time,
            "rollout_id": event.rollout_id,
            "attempt": event.attempt,
            "number": event.number,
            "event": _snake(type(event.kind).__name__),
            "data": _plain(event.kind),
        }
        with self.path(event.rollout_id).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def path(self, rollout_id: str) -> Path:
        """Return the file of a rollout."""
        slug = re.sub(r"[^A-Za-z0-9_-]", "_", rollout_id)[:64]
        mark = hashlib.sha256(rollout_id.encode()).hexdigest()[:8]
        return self.folder / f"{slug}-{mark}.jsonl"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _plain(value: Any) -> Any:
    """Return a value as JSON; a request without its credentials."""
    if isinstance(value, InitRequest):
        return _plain(dataclasses.replace(value.request, api_key=None))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return [None if item != item else item for item in value.tolist()]  # NaN differs from itself
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
