from osmosis_gateway.app import DEFAULT_HOST as DEFAULT_HOST
from osmosis_gateway.app import DEFAULT_PORT as DEFAULT_PORT
from osmosis_gateway.app import ServeError as ServeError
from osmosis_gateway.app import create_app as create_app
from osmosis_gateway.app import serve_agent_loop as serve_agent_loop
from osmosis_gateway.llm_client import OsmosisLLMClient as OsmosisLLMClient
from osmosis_gateway.mock_trainer import RolloutCompletionTracker as RolloutCompletionTracker
from osmosis_gateway.mock_trainer import create_mock_trainer_app as create_mock_trainer_app
from osmosis_grpc.agent.context import RolloutContext as RolloutContext
from osmosis_grpc.agent.context import get_rollout_context as get_rollout_context
from osmosis_grpc.agent.error_categories import GraderStatus as GraderStatus
from osmosis_grpc.agent.error_categories import RolloutErrorCategory as RolloutErrorCategory
from osmosis_grpc.agent.grader import Grader as Grader
from osmosis_grpc.agent.grader import GraderContext as GraderContext
from osmosis_grpc.agent.grader import RolloutSample as RolloutSample
from osmosis_grpc.agent.grading import grade_recorded as grade_recorded
from osmosis_grpc.agent.loop import RolloutAgentLoop as RolloutAgentLoop
from osmosis_grpc.agent.messages import count_messages_by_role as count_messages_by_role
from osmosis_grpc.agent.messages import get_message_content as get_message_content
from osmosis_grpc.agent.messages import get_message_role as get_message_role
from osmosis_grpc.agent.messages import is_assistant_message as is_assistant_message
from osmosis_grpc.agent.messages import is_tool_message as is_tool_message
from osmosis_grpc.agent.messages import is_user_message as is_user_message
from osmosis_grpc.agent.messages import normalize_stop as normalize_stop
from osmosis_grpc.agent.messages import parse_tool_calls as parse_tool_calls
from osmosis_grpc.agent.model_client import LLMClientProtocol as LLMClientProtocol
from osmosis_grpc.agent.registry import AgentLoopRegistry as AgentLoopRegistry
from osmosis_grpc.agent.registry import get_agent_loop as get_agent_loop
from osmosis_grpc.agent.registry import list_agent_loops as list_agent_loops
from osmosis_grpc.agent.registry import register_agent_loop as register_agent_loop
from osmosis_grpc.agent.registry import unregister_agent_loop as unregister_agent_loop
from osmosis_grpc.agent.request import RolloutRequest as RolloutRequest
from osmosis_grpc.agent.request_model import DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES
from osmosis_grpc.agent.request_model import get_max_metadata_size_bytes as get_max_metadata_size_bytes
from osmosis_grpc.agent.request_model import set_max_metadata_size_bytes as set_max_metadata_size_bytes
from osmosis_grpc.agent.results import CompletionsResult as CompletionsResult
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
from osmosis_grpc.agent.sync_context import SyncRolloutContext as SyncRolloutContext
from osmosis_grpc.agent.tools import create_tool_error_result as create_tool_error_result
from osmosis_grpc.agent.tools import create_tool_result as create_tool_result
from osmosis_grpc.agent.tools import execute_tool_calls as execute_tool_calls
from osmosis_grpc.agent.tools import get_tool_call_info as get_tool_call_info
from osmosis_grpc.agent.tools import parse_tool_arguments as parse_tool_arguments
from osmosis_grpc.agent.tools import serialize_tool_result as serialize_tool_result
from osmosis_grpc.agent.validation_report import validate_and_report as validate_and_report
from osmosis_grpc.agent.validator import AgentLoopValidationError as AgentLoopValidationError
from osmosis_grpc.agent.validator import Finding as ValidationError
from osmosis_grpc.agent.validator import ValidationResult as ValidationResult
from osmosis_grpc.agent.validator import validate_agent_loop as validate_agent_loop
from osmosis_grpc.agent.workflow import AgentWorkflow as AgentWorkflow
from osmosis_grpc.agent.workflow import AgentWorkflowContext as AgentWorkflowContext
from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig as AgentWorkflowConfig
from osmosis_grpc.agent.workflow_config import BaseConfig as BaseConfig
from osmosis_grpc.agent.workflow_config import ConcurrencyConfig as ConcurrencyConfig
from osmosis_grpc.agent.workflow_config import GraderConfig as GraderConfig
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable as WorkflowRunnable
from osmosis_grpc.agent.workflow_validator import validate_workflow as validate_workflow
from osmosis_grpc.integrations.litellm import register_litellm_provider as register_litellm_provider
from osmosis_grpc.integrations.openai import rollout_agent as rollout_agent
from osmosis_grpc.integrations.recorded_samples import recorded_samples as recorded_samples
from osmosis_grpc.integrations.strands import OsmosisRolloutModel as OsmosisRolloutModel
from osmosis_grpc.integrations.strands import OsmosisStrandsAgent as OsmosisStrandsAgent
from osmosis_grpc.protocol.errors import AgentLoopNotFoundError as AgentLoopNotFoundError
from osmosis_grpc.protocol.errors import OsmosisRolloutError as OsmosisRolloutError
from osmosis_grpc.protocol.errors import OsmosisServerError as OsmosisServerError
from osmosis_grpc.protocol.errors import OsmosisTimeoutError as OsmosisTimeoutError
from osmosis_grpc.protocol.errors import OsmosisTransportError as OsmosisTransportError
from osmosis_grpc.protocol.errors import OsmosisValidationError as OsmosisValidationError
from osmosis_grpc.protocol.errors import ToolArgumentError as ToolArgumentError
from osmosis_grpc.protocol.errors import ToolExecutionError as ToolExecutionError
from osmosis_grpc.protocol.types.chat import ChatPurpose as ChatPurpose
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionSchema as OpenAIFunctionSchema
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema
from osmosis_grpc.settings.settings import RolloutClientSettings as RolloutClientSettings
from osmosis_grpc.settings.settings import RolloutServerSettings as RolloutServerSettings
from osmosis_grpc.settings.settings import RolloutSettings as RolloutSettings
from osmosis_grpc.settings.settings import configure as configure
from osmosis_grpc.settings.settings import get_settings as get_settings
from osmosis_grpc.settings.settings import reset_settings as reset_settings
from osmosis_grpc.tools.tool import tool as tool

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "DEFAULT_PORT",
    "AgentLoopNotFoundError",
    "AgentLoopRegistry",
    "AgentLoopValidationError",
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "BaseConfig",
    "ChatPurpose",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "CompletionsResult",
    "ConcurrencyConfig",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "GraderStatus",
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
    "OsmosisLLMClient",
    "OsmosisRolloutError",
    "OsmosisRolloutModel",
    "OsmosisServerError",
    "OsmosisStrandsAgent",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "RolloutAgentLoop",
    "RolloutClientSettings",
    "RolloutCompletionTracker",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RolloutSample",
    "RolloutServerSettings",
    "RolloutSettings",
    "RolloutStatus",
    "SamplingParamsDict",
    "ServeError",
    "SyncRolloutContext",
    "ToolArgumentError",
    "ToolExecutionError",
    "ToolResponse",
    "ValidationError",
    "ValidationResult",
    "WorkflowRunnable",
    "configure",
    "count_messages_by_role",
    "create_app",
    "create_mock_trainer_app",
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_agent_loop",
    "get_max_metadata_size_bytes",
    "get_message_content",
    "get_message_role",
    "get_rollout_context",
    "get_settings",
    "get_tool_call_info",
    "grade_recorded",
    "is_assistant_message",
    "is_tool_message",
    "is_user_message",
    "list_agent_loops",
    "normalize_stop",
    "parse_tool_arguments",
    "parse_tool_calls",
    "recorded_samples",
    "register_agent_loop",
    "register_litellm_provider",
    "reset_settings",
    "rollout_agent",
    "serialize_tool_result",
    "serve_agent_loop",
    "set_max_metadata_size_bytes",
    "tool",
    "unregister_agent_loop",
    "validate_agent_loop",
    "validate_and_report",
    "validate_workflow",
]
