"""Tool schemas in OpenAI's function format, as pydantic models.

Keys that the models do not name are kept: nested JSON Schema passes through unchanged. Importing this module imports
pydantic, so osmosis_grpc.protocol.types does not import it.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


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
