"""Messages as chat templates expect them.

Templates write the arguments of tool calls as JSON, so they get objects instead of OpenAI's texts. They get an empty
text for a missing content, a text for parts that are all texts, and {"type": "image"} for an image.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_grpc.policies.media import MODALITIES
from osmosis_grpc.protocol.types import Message


def template_messages(messages: Iterable[Message]) -> list[Message]:
    """Return copies of messages for a template. Does not change the messages."""
    return [_message(message) for message in messages]


def with_text_arguments(messages: Iterable[Message]) -> list[Message]:
    """Return copies of template_messages() whose calls have their arguments as texts, as DeepSeek's templates need."""
    return [_with_texts(message) for message in messages]


def _with_texts(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_text_call(call) for call in calls]}


def _text_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _message(message: Message) -> Message:
    made = {**message, "content": _content(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = [_call(call) for call in calls]
    elif "tool_calls" in made:
        del made["tool_calls"]
    return made


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return {"type": MODALITIES[kind].value} if kind in MODALITIES else part


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call  # the template writes the text
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call
