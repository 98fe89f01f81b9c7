"""Reading messages, for agent loops: whatever a model server put into one, these answer.

Which messages may travel is said in osmosis_grpc.types.messages; nothing is refused here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def parse_tool_calls(assistant_message: Mapping[str, Any]) -> list[Any]:
    """The tool calls of a reply as they stand in it; none when they are no list."""
    calls = assistant_message.get("tool_calls")
    return list(calls) if isinstance(calls, list) else []


def normalize_stop(stop: Any) -> list[str] | None:
    """Stop sequences, given as one text or as a list, as a list. None for anything else."""
    if isinstance(stop, str):
        return [stop]
    return [str(text) for text in stop] if isinstance(stop, list) else None


def get_message_content(message: Mapping[str, Any]) -> str:
    """A message's text; empty when its content is no text, such as a list of parts."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: Mapping[str, Any]) -> str:
    """A message's role, "unknown" when it has none."""
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: Mapping[str, Any]) -> bool:
    """Whether the model said it."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: Mapping[str, Any]) -> bool:
    """Whether it is what a tool returned."""
    return get_message_role(message) == "tool"


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Whether the user said it."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many messages each role has; roles without one are not in it."""
    return dict(Counter(map(get_message_role, messages)))
