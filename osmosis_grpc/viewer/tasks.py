"""Reads what lists of rollouts lack: the task (prompt and label), and the trainer's step that used a rollout.

A request does not change, so its task is read once. Rollouts with equal prompts and labels have the same task.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.types import Group, RolloutInfo, RolloutRequest
from osmosis_grpc.records.reading.message_text import mappings, text_of
from osmosis_grpc.records.reading.source_port import Source, SourceError
from osmosis_grpc.viewer.calls import Key

MOST_CHARS = 200
"""The most characters of a prompt, and of a label, in a list."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a rollout was asked."""

    name: str
    """A digest of the messages and the label. Equal tasks have equal names."""
    prompt: str = ""
    """The beginning of the last message of the user, or else of the first message."""
    label: str | None = None
    group: Group | None = None
    """The group of the rollout, which fast lists lack."""


def task_of(request: RolloutRequest) -> Task:
    """Return the task of a request. Without messages, its name comes from the metadata, which an environment reads."""
    asked = [message for message in request.messages if message.get("role") == "user"]
    prompt = _said((asked[-1] if asked else request.messages[0]).get("content")) if request.messages else ""
    what = request.messages or request.metadata
    name = hashlib.sha256(json.dumps([what, request.label], sort_keys=True, default=str).encode()).hexdigest()[:16]
    label = request.label
    return Task(name, prompt.strip()[:MOST_CHARS], label if label is None else label[:MOST_CHARS], request.group)


def _said(content: Any) -> str:
    """Return the text of a message. Show only the type of a part that is not text."""
    parts = mappings(content)
    return " ".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts) if parts else text_of(content)


async def read_tasks(source: Source, rows: Iterable[RolloutInfo]) -> dict[Key, Task]:
    """Return the tasks of rollouts. Skip rollouts that cannot be read."""
    found: dict[Key, Task] = {}
    with source.snapshot():
        for info in rows:
            with suppress(SourceError):  # damaged, or dropped since the list was read
                request, _ = await source.request(info.rollout_id, info.attempt)
                found[info.rollout_id, info.attempt] = task_of(request)
    return found


async def read_steps(source: Source, rows: Iterable[RolloutInfo]) -> dict[Key, str]:
    """Return the trainer's step that used each rollout. Skip rollouts that no step used."""
    found: dict[Key, str] = {}
    with source.snapshot():
        for info in rows:
            if info.end_time is None:
                continue
            with suppress(SourceError):
                notes = await source.annotations(info.rollout_id, info.attempt)
                step = next((note.weight_step for note in reversed(notes) if note.weight_step), "")
                found |= {(info.rollout_id, info.attempt): step} if step else {}
    return found
