"""Functions that read messages, for agent loops. They accept every message that a model server sends.

osmosis_grpc.protocol.types.messages checks which messages can be sent.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def parse_tool_calls(assistant_message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a reply; an empty list if they are not a list."""
    calls = assistant_message.get("tool_calls")
    return list(calls) if isinstance(calls, list) else []


def normalize_stop(stop: Any) -> list[str] | None:
    """Return stop sequences as a list. `stop` is one text or a list. Return None for any other value."""
    if isinstance(stop, str):
        return [stop]
    return [str(text) for text in stop] if isinstance(stop, list) else None


def get_message_content(message: Mapping[str, Any]) -> str:
    """Return a message's text; an empty text if the content is not a text but, for example, a list of parts."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: Mapping[str, Any]) -> str:
    """Return a message's role; "unknown" if it has none."""
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is the model's."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is a tool's result."""
    return get_message_role(message) == "tool"


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is the user's."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of messages by role."""
    return dict(Counter(map(get_message_role, messages)))
