"""Tools for a model that knows only texts: writes tools and calls into messages, and finds a call in a reply.

The system message says how a call looks. SmolLM2-135M writes one only if the conversation has an example. A reply that
begins with a call, or with a list of calls, becomes tool calls. They keep the names that the model wrote.
"""

import json
from typing import Any
from uuid import uuid4

HOW = 'To call a tool, reply only with JSON: {"name": TOOL, "arguments": {...}}'


class Invalid(ValueError):
    """Messages or tools that cannot be read."""


def texts(messages: Any, tools: Any) -> list[dict[str, str]]:
    """Return the messages as pairs of role and text. The tools are in the system message. Raises Invalid."""
    if not isinstance(messages, list) or not messages:
        raise Invalid("messages: is not a list of messages")
    written = [{"role": _role(message), "content": _text(message)} for message in messages]
    if tools:
        about = "\n".join(["Tools:", *map(_tool, tools), "", HOW])
        if written[0]["role"] != "system":
            written.insert(0, {"role": "system", "content": "You are a helpful assistant."})
        written[0]["content"] += f"\n\n{about}"
    return written


def called(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the tool calls with which a reply begins, and the rest of its text."""
    try:
        value, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return [], text
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(map(_is_call, calls)):
        return [], text
    made = [
        {
            "id": f"call_{uuid4().hex[:12]}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for call in calls
    ]
    return made, text.lstrip()[end:].strip()


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("arguments"), dict)


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("system", "user", "assistant", "tool"):
        raise Invalid("messages: a role is system, user, assistant or tool")
    return "user" if role == "tool" else str(role)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise Invalid("messages: a content is a text, or a list of parts")
    if message["role"] == "tool":
        return f"Result: {content}"
    try:
        calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    except (KeyError, TypeError, ValueError):
        raise Invalid("messages: a tool call has a function with a name and with arguments in JSON") from None
    return "\n".join([*([content] if content else []), *calls])


def _call(function: dict[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": json.loads(function["arguments"])}, ensure_ascii=False)


def _tool(tool: Any) -> str:
    """Return a tool as one line: name(parameter: type, ...): description."""
    try:
        function = tool["function"]
        properties = (function.get("parameters") or {}).get("properties") or {}
        parameters = ", ".join(f"{name}: {schema.get('type', 'any')}" for name, schema in properties.items())
        return f"{function['name']}({parameters}): {function.get('description') or ''}"
    except (KeyError, TypeError, AttributeError):
        raise Invalid("tools: a tool has a function with a name and parameters") from None
