"""Extracts the text, the reasoning and the tool calls of messages, and describes how tool calls ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.types import Message

THINK = "<think>", "</think>"
"""The marks with which some models enclose their reasoning at the beginning of the content."""
CallName = tuple[int, str]
"""The number of the chat whose reply has the call, or 0 if it is unknown, and the call's id."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """What events tell about a tool call in addition to the conversation."""

    latency: float | None = None
    """In seconds; None if it is unknown."""
    error: str = ""
    """The error that the tool raised, if any."""
    message: Message | None = None
    """The result, for a call whose result is not in the conversation."""
    missing: str = "no result"
    """The text to show if there is no result at all."""


def reasoning_of(message: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the reasoning of a reply, or an empty string, and the content without it."""
    content = message.get("content")
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(name), str) and thought:
            return thought, content
    if isinstance(content, str) and content.lstrip().startswith(THINK[0]) and THINK[1] in content:
        thought, _, rest = content.partition(THINK[1])
        return thought.lstrip().removeprefix(THINK[0]).strip("\n"), rest.lstrip("\n")
    return "", content


def text_of(content: Any) -> str:
    """Return the content of a message as text. A part that is not text becomes its type and size."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = mappings(content)
    if not parts or len(parts) < len(content):
        return json.dumps(content, ensure_ascii=False, default=str)
    texts = []
    for part in parts:
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            size = len(json.dumps(part, default=str))
            texts.append(f"[{part.get('type')}, {size} characters of JSON]")
    return "\n".join(texts)


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of the last user message of a rollout or, if there is none, of its last message."""
    asked = [message for message in messages if message.get("role") == "user"] or list(messages)
    return text_of(asked[-1].get("content")).strip().partition("\n")[0] if asked else ""


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list, or [] for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else {}."""
    return value if isinstance(value, Mapping) else {}
