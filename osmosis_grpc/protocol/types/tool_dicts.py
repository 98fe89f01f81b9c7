"""Tool schemas in OpenAI's function format, as dicts."""

import sys
from collections.abc import Iterable
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext

ToolDict = dict[str, Any]
"""A tool schema as a dict."""


def dump_model(value: Any) -> Any:
    """Return a pydantic model as a dict, and any other value unchanged. Does not import pydantic."""
    pydantic = sys.modules.get("pydantic")  # if pydantic was not imported, no value can be a model
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(exclude_none=True)
    return value


def plain_tool(tool: Any) -> Any:
    """Return the schema of a tool as a dict, and a value that is no tool unchanged."""
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
