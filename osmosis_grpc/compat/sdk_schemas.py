"""The bodies of the Osmosis SDK's HTTP contract as pydantic models, for authors and their unit tests."""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from osmosis_grpc.agent.request_model import RolloutId, RolloutMetrics
from osmosis_grpc.protocol.types.messages import Message
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionToolSchema

MessageDict = Message
Messages = list[dict[str, Any]]
"""A conversation."""
SamplingParamsDict = dict[str, Any]
"""Sampling parameters, under OpenAI's names."""


class RolloutStatus(StrEnum):
    """The status of a rollout. The upper case values come from the SDK 0.2.14, the others from later versions."""

    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"
    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class InitResponse(BaseModel):
    """The answer to an Init."""

    rollout_id: str
    tools: list[OpenAIFunctionToolSchema] = Field(default_factory=list)


class RolloutResponse(BaseModel):
    """The result of a rollout, as its trainer gets it."""

    rollout_id: str
    status: RolloutStatus
    final_messages: list[MessageDict] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class CompletionsRequest(BaseModel):
    """The body of a chat."""

    model: str = "default"
    messages: list[MessageDict]
    rollout_id: RolloutId
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


class CompletionsChoice(BaseModel):
    """One reply."""

    index: int = 0
    message: MessageDict
    finish_reason: str = "stop"


class CompletionUsage(BaseModel):
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionsResponse(BaseModel):
    """The answer to a chat."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str = "default"
    choices: list[CompletionsChoice]
    usage: CompletionUsage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None


class OpenAIFunctionParsedSchema(BaseModel):
    """A function call as a model writes it."""

    name: str
    arguments: str
    """A JSON text."""


class OpenAIFunctionCallSchema(BaseModel):
    """A function call with parsed arguments."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed_schema: OpenAIFunctionParsedSchema,
    ) -> "tuple[OpenAIFunctionCallSchema, bool]":
        """Return the call, and whether its arguments are malformed: not a JSON object. They are then left empty."""
        try:
            arguments = json.loads(parsed_schema.arguments)
        except ValueError:
            arguments = None
        wrong = not isinstance(arguments, dict)
        return OpenAIFunctionCallSchema(name=parsed_schema.name, arguments={} if wrong else arguments), wrong


class OpenAIFunctionToolCall(BaseModel):
    """A tool call with parsed arguments."""

    id: str
    type: str = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """What a tool returned: text, images and videos."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Return whether there is no text, no image and no video."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Return whether there is text, and neither an image nor a video."""
        return bool(self.text) and not (self.image or self.video)
