"""Reads messages: their text, their reasoning, their tool calls and the ends of these."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.types import Message

THINK = "<think>", "</think>"
"""Some models mark their reasoning like this at the beginning of the content."""
CallName = tuple[int, str]
"""The number of the chat whose reply asks for a call, 0 if it is not known, and the call's id."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """What is known about a tool call apart from the conversation."""

    latency: float | None = None
    """Seconds; None if it is not known."""
    error: str = ""
    """The error that the tool raised; empty if it raised none."""
    message: Message | None = None
    """The result, which is shown if the conversation does not have it."""
    missing: str = "no result"
    """What is shown if there is no result at all."""


def reasoning_of(message: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the reasoning of a reply, empty without one, and the content without the reasoning."""
    content = message.get("content")
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(name), str) and thought:
            return thought, content
    if isinstance(content, str) and content.lstrip().startswith(THINK[0]) and THINK[1] in content:
        thought, _, rest = content.partition(THINK[1])
        return thought.lstrip().removeprefix(THINK[0]).strip("\n"), rest.lstrip("\n")
    return "", content


def text_of(content: Any) -> str:
    """Return the content of a message as text. Parts that are no text are named by their type and size."""
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
    """Return the first line of what a rollout is asked: of its last user message, else of its last message."""
    asked = [message for message in messages if message.get("role") == "user"] or list(messages)
    return text_of(asked[-1].get("content")).strip().partition("\n")[0] if asked else ""


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; an empty list for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
