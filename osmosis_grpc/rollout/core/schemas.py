"""The Osmosis SDK's osmosis_ai.rollout.core.schemas."""

from osmosis_grpc.types.messages import Message as MessageDict
from osmosis_grpc.types.outcome import RolloutMetrics
from osmosis_grpc.types.requests import RolloutRequest
from osmosis_grpc.types.tool_models import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)

__all__ = [
    "MessageDict",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "RolloutRequest",
]
