"""The front door for agent authors: the import paths of the Osmosis SDK.

Names are looked up in a table when they are first used, so importing this package costs
nothing and nobody needs an extra for what they do not use. No logic lives here.
"""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.rollout._lazy import lookup

if TYPE_CHECKING:
    from osmosis_gateway.app import create_app as create_app
    from osmosis_gateway.app import serve_agent_loop as serve_agent_loop
    from osmosis_gateway.llm_client import OsmosisLLMClient as OsmosisLLMClient
    from osmosis_gateway.mock_trainer import RolloutCompletionTracker as RolloutCompletionTracker
    from osmosis_gateway.mock_trainer import create_mock_trainer_app as create_mock_trainer_app
    from osmosis_grpc.agent.context import RolloutContext as RolloutContext
    from osmosis_grpc.agent.loop import RolloutAgentLoop as RolloutAgentLoop
    from osmosis_grpc.agent.messages import count_messages_by_role as count_messages_by_role
    from osmosis_grpc.agent.messages import get_message_content as get_message_content
    from osmosis_grpc.agent.messages import get_message_role as get_message_role
    from osmosis_grpc.agent.messages import is_assistant_message as is_assistant_message
    from osmosis_grpc.agent.messages import is_tool_message as is_tool_message
    from osmosis_grpc.agent.messages import is_user_message as is_user_message
    from osmosis_grpc.agent.messages import normalize_stop as normalize_stop
    from osmosis_grpc.agent.messages import parse_tool_calls as parse_tool_calls
    from osmosis_grpc.agent.registry import AgentLoopRegistry as AgentLoopRegistry
    from osmosis_grpc.agent.registry import get_agent_loop as get_agent_loop
    from osmosis_grpc.agent.registry import list_agent_loops as list_agent_loops
    from osmosis_grpc.agent.registry import register_agent_loop as register_agent_loop
    from osmosis_grpc.agent.registry import unregister_agent_loop as unregister_agent_loop
    from osmosis_grpc.agent.results import CompletionsResult as CompletionsResult
    from osmosis_grpc.agent.results import RolloutResult as RolloutResult
    from osmosis_grpc.agent.validator import AgentLoopValidationError as AgentLoopValidationError
    from osmosis_grpc.agent.validator import ValidationResult as ValidationResult
    from osmosis_grpc.agent.validator import validate_agent_loop as validate_agent_loop
    from osmosis_grpc.errors import AgentLoopNotFoundError as AgentLoopNotFoundError
    from osmosis_grpc.errors import OsmosisRolloutError as OsmosisRolloutError
    from osmosis_grpc.errors import OsmosisServerError as OsmosisServerError
    from osmosis_grpc.errors import OsmosisTimeoutError as OsmosisTimeoutError
    from osmosis_grpc.errors import OsmosisTransportError as OsmosisTransportError
    from osmosis_grpc.errors import OsmosisValidationError as OsmosisValidationError
    from osmosis_grpc.errors import ToolArgumentError as ToolArgumentError
    from osmosis_grpc.errors import ToolExecutionError as ToolExecutionError
    from osmosis_grpc.settings import RolloutClientSettings as RolloutClientSettings
    from osmosis_grpc.settings import RolloutServerSettings as RolloutServerSettings
    from osmosis_grpc.settings import RolloutSettings as RolloutSettings
    from osmosis_grpc.settings import configure as configure
    from osmosis_grpc.settings import get_settings as get_settings
    from osmosis_grpc.types.chat import ChatPurpose as ChatPurpose
    from osmosis_grpc.types.completion import RolloutMetrics as RolloutMetrics
    from osmosis_grpc.types.requests import RolloutRequest as RolloutRequest
    from osmosis_grpc.types.tools import OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema
    from osmosis_grpc.types.tools import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
    from osmosis_grpc.types.tools import OpenAIFunctionSchema as OpenAIFunctionSchema
    from osmosis_grpc.types.tools import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema

_WHERE = {
    "osmosis_gateway.app": ("create_app", "serve_agent_loop"),
    "osmosis_gateway.llm_client": ("OsmosisLLMClient",),
    "osmosis_gateway.mock_trainer": ("RolloutCompletionTracker", "create_mock_trainer_app"),
    "osmosis_grpc.agent.context": ("RolloutContext",),
    "osmosis_grpc.agent.loop": ("RolloutAgentLoop",),
    "osmosis_grpc.agent.messages": (
        "count_messages_by_role",
        "get_message_content",
        "get_message_role",
        "is_assistant_message",
        "is_tool_message",
        "is_user_message",
        "normalize_stop",
        "parse_tool_calls",
    ),
    "osmosis_grpc.agent.registry": (
        "AgentLoopRegistry",
        "get_agent_loop",
        "list_agent_loops",
        "register_agent_loop",
        "unregister_agent_loop",
    ),
    "osmosis_grpc.agent.results": ("CompletionsResult", "RolloutResult"),
    "osmosis_grpc.agent.tools": (
        "create_tool_error_result",
        "create_tool_result",
        "execute_tool_calls",
        "get_tool_call_info",
        "serialize_tool_result",
    ),
    "osmosis_grpc.agent.validator": ("AgentLoopValidationError", "ValidationResult", "validate_agent_loop"),
    "osmosis_grpc.errors": (
        "AgentLoopNotFoundError",
        "OsmosisRolloutError",
        "OsmosisServerError",
        "OsmosisTimeoutError",
        "OsmosisTransportError",
        "OsmosisValidationError",
        "ToolArgumentError",
        "ToolExecutionError",
    ),
    "osmosis_grpc.settings": (
        "RolloutClientSettings",
        "RolloutServerSettings",
        "RolloutSettings",
        "configure",
        "get_settings",
    ),
    "osmosis_grpc.types.chat": ("ChatPurpose",),
    "osmosis_grpc.types.completion": ("RolloutMetrics",),
    "osmosis_grpc.types.requests": ("RolloutRequest",),
    "osmosis_grpc.types.tools": (
        "OpenAIFunctionParametersSchema",
        "OpenAIFunctionPropertySchema",
        "OpenAIFunctionSchema",
        "OpenAIFunctionToolSchema",
    ),
}
__all__ = sorted(name for names in _WHERE.values() for name in names)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return lookup(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
