"""Messages and tools: plain dicts in OpenAI's formats, and the rules for them.

A message stays unchanged, with unknown keys, nulls and vendor fields. Its role is checked, because every model server
must know the role; only trainers of the legacy HTTP contract accept other roles. All other keys and values only need to
be valid JSON.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext

Message = dict[str, Any]
"""An OpenAI-style message: a role, usually a content, and any other keys."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


MAX_ROLE_CHARS = 64


def copy_message(message: Any, field: str, any_role: bool = False) -> Message:
    """Return a checked deep copy of one message. Raises InvalidArgument with a path that begins with `field`."""
    if not isinstance(message, dict):
        meant = "; use its .message" if isinstance(getattr(message, "message", None), dict) else ""
        raise InvalidArgument(field, f"a message is a dict, not a {type(message).__name__}{meant}")
    check_role(message.get("role"), field, any_role)
    copied: Message = {}
    for key, value in message.items():
        if type(value) is str and type(key) is str and value.isascii() and key.isascii():
            copied[key] = value  # the usual case
        else:
            copied[jsontext.check_key(key, field)] = jsontext.copy(value, f"{field}.{key}")
    return copied


def copy_messages(messages: Iterable[Any], field: str, any_role: bool = False) -> list[Message]:
    """Return checked deep copies of messages. Raises InvalidArgument with a path that begins with `field`."""
    return [copy_message(message, f"{field}[{index}]", any_role) for index, message in enumerate(messages)]


def check_role(role: Any, field: str, any_role: bool = False) -> None:
    """Raise InvalidArgument for a role that model servers do not know.

    With `any_role`, a role is any text of 1 to 64 characters that can be printed.
    """
    if any_role and isinstance(role, str) and 0 < len(role) <= MAX_ROLE_CHARS and role.isprintable():
        return
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidArgument(f"{field}.role", f"{role!r} is not one of {', '.join(sorted(ROLES))}")


def text_size(messages: Sequence[Message]) -> int:
    """Return the approximate memory of messages in bytes. Use it for budgets, and not for exact limits."""
    return sum(map(_size, messages))


def _size(value: Any) -> int:
    kind = type(value)
    if kind is not dict and kind is not list:
        return 64 + len(value) if kind is str else 32
    size = 64
    for item in value.values() if kind is dict else value:
        size += 64 + len(item) if type(item) is str else _size(item)
    return size


ToolDict = dict[str, Any]
"""A tool schema as a dict."""


def dump_model(value: Any) -> Any:
    """Return a pydantic model as a dict, and any other value unchanged. Does not import pydantic."""
    pydantic = sys.modules.get("pydantic")  # if pydantic was not imported, no value can be a model
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(exclude_none=True)
    return value


def plain_tool(tool: Any) -> Any:
    """Return the schema of a tool as a dict, and a value that is not a tool unchanged."""
    schema = getattr(tool, "openai_schema", None)
    return schema() if callable(schema) else dump_model(tool)


def tool_dicts(tools: Iterable[Any] | None, field: str = "tools") -> list[ToolDict]:
    """Return the tools of an agent as checked dicts. None means no tools.

    Tools are dicts, schema objects, or objects with a method openai_schema().

    Raises InvalidArgument naming a tool that is neither a dict nor a schema.
    """
    made: list[ToolDict] = []
    if tools is not None and not isinstance(tools, list | tuple):
        raise InvalidArgument(field, f"tools are a list, not a {type(tools).__name__}")
    for index, tool in enumerate(tools or ()):
        plain = plain_tool(tool)
        if not isinstance(plain, dict):
            raise InvalidArgument(f"{field}[{index}]", f"a tool is a dict or a schema, not a {type(tool).__name__}")
        made.append(jsontext.copy(plain, f"{field}[{index}]"))
    return made
