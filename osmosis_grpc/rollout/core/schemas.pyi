from osmosis_grpc.agent.request import RolloutRequest as RolloutRequest
from osmosis_grpc.agent.request_model import DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES
from osmosis_grpc.agent.request_model import get_max_metadata_size_bytes as get_max_metadata_size_bytes
from osmosis_grpc.agent.request_model import set_max_metadata_size_bytes as set_max_metadata_size_bytes
from osmosis_grpc.agent.sdk_schemas import CompletionsChoice as CompletionsChoice
from osmosis_grpc.agent.sdk_schemas import CompletionsRequest as CompletionsRequest
from osmosis_grpc.agent.sdk_schemas import CompletionsResponse as CompletionsResponse
from osmosis_grpc.agent.sdk_schemas import CompletionUsage as CompletionUsage
from osmosis_grpc.agent.sdk_schemas import InitResponse as InitResponse
from osmosis_grpc.agent.sdk_schemas import MessageDict as MessageDict
from osmosis_grpc.agent.sdk_schemas import OpenAIFunctionCallSchema as OpenAIFunctionCallSchema
from osmosis_grpc.agent.sdk_schemas import OpenAIFunctionParsedSchema as OpenAIFunctionParsedSchema
from osmosis_grpc.agent.sdk_schemas import OpenAIFunctionToolCall as OpenAIFunctionToolCall
from osmosis_grpc.agent.sdk_schemas import RolloutMetrics as RolloutMetrics
from osmosis_grpc.agent.sdk_schemas import RolloutResponse as RolloutResponse
from osmosis_grpc.agent.sdk_schemas import RolloutStatus as RolloutStatus
from osmosis_grpc.agent.sdk_schemas import SamplingParamsDict as SamplingParamsDict
from osmosis_grpc.agent.sdk_schemas import ToolResponse as ToolResponse
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionSchema as OpenAIFunctionSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "InitResponse",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
]
