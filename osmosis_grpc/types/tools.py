"""Tool schemas in OpenAI's function format, as classes and as the dicts that travel.

Keys that the classes do not name are kept: nested JSON Schema passes through unchanged.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import jsontext

ToolDict = dict[str, Any]
"""A tool schema as a dict."""


class _Schema(BaseModel):
    model_config = ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Schema):
    """One property of a function's parameters."""

    type: str
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Schema):
    """The parameters of a function."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(_Schema):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = Field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


class OpenAIFunctionToolSchema(_Schema):
    """A tool; `type` is "function"."""

    type: str = "function"
    function: OpenAIFunctionSchema


def tool_dicts(tools: Iterable[Any] | None, field: str = "tools") -> list[ToolDict]:
    """Tools as an agent returns them (dicts, schema objects, None for none) as checked dicts.

    Raises InvalidArgument naming the tool that is neither.
    """
    made: list[ToolDict] = []
    if tools is not None and not isinstance(tools, list | tuple):
        raise InvalidArgument(field, f"tools are a list, not a {type(tools).__name__}")
    for index, tool in enumerate(tools or ()):
        plain = tool.model_dump(exclude_none=True) if isinstance(tool, BaseModel) else tool
        if not isinstance(plain, dict):
            raise InvalidArgument(f"{field}[{index}]", f"a tool is a dict or a schema, not a {type(tool).__name__}")
        made.append(jsontext.copy(plain, f"{field}[{index}]"))
    return made
