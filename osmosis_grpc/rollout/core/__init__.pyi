from osmosis_grpc.agent.context import RolloutContext as RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop as RolloutAgentLoop
from osmosis_grpc.agent.model_client import LLMClientProtocol as LLMClientProtocol
from osmosis_grpc.agent.request import RolloutRequest as RolloutRequest
from osmosis_grpc.agent.request_model import DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES
from osmosis_grpc.agent.request_model import get_max_metadata_size_bytes as get_max_metadata_size_bytes
from osmosis_grpc.agent.request_model import set_max_metadata_size_bytes as set_max_metadata_size_bytes
from osmosis_grpc.agent.results import RolloutResult as RolloutResult
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
from osmosis_grpc.protocol.errors import AgentLoopNotFoundError as AgentLoopNotFoundError
from osmosis_grpc.protocol.errors import OsmosisRolloutError as OsmosisRolloutError
from osmosis_grpc.protocol.errors import OsmosisServerError as OsmosisServerError
from osmosis_grpc.protocol.errors import OsmosisTimeoutError as OsmosisTimeoutError
from osmosis_grpc.protocol.errors import OsmosisTransportError as OsmosisTransportError
from osmosis_grpc.protocol.errors import OsmosisValidationError as OsmosisValidationError
from osmosis_grpc.protocol.errors import ToolArgumentError as ToolArgumentError
from osmosis_grpc.protocol.errors import ToolExecutionError as ToolExecutionError
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionSchema as OpenAIFunctionSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "AgentLoopNotFoundError",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "InitResponse",
    "LLMClientProtocol",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolArgumentError",
    "ToolExecutionError",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
]
