"""The front door for agent authors: the import paths of the Osmosis SDK.

Names are looked up in a table when they are first used, so importing this package costs
nothing and nobody needs an extra for what they do not use. No logic lives here.
"""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.rollout._lazy import lookup

if TYPE_CHECKING:
    from osmosis_gateway.app import create_app as create_app
    from osmosis_grpc.agent.context import RolloutContext as RolloutContext
    from osmosis_grpc.agent.loop import RolloutAgentLoop as RolloutAgentLoop
    from osmosis_grpc.agent.results import CompletionsResult as CompletionsResult
    from osmosis_grpc.agent.results import RolloutResult as RolloutResult
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
    from osmosis_grpc.types.completion import RolloutMetrics as RolloutMetrics
    from osmosis_grpc.types.requests import RolloutRequest as RolloutRequest
    from osmosis_grpc.types.tools import OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema
    from osmosis_grpc.types.tools import OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema
    from osmosis_grpc.types.tools import OpenAIFunctionSchema as OpenAIFunctionSchema
    from osmosis_grpc.types.tools import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema

_WHERE = {
    "osmosis_gateway.app": ("create_app",),
    "osmosis_grpc.agent.context": ("RolloutContext",),
    "osmosis_grpc.agent.loop": ("RolloutAgentLoop",),
    "osmosis_grpc.agent.results": ("CompletionsResult", "RolloutResult"),
    "osmosis_grpc.agent.tools": (
        "create_tool_error_result", "create_tool_result", "execute_tool_calls", "get_tool_call_info",
        "serialize_tool_result",
    ),
    "osmosis_grpc.errors": (
        "AgentLoopNotFoundError", "OsmosisRolloutError", "OsmosisServerError", "OsmosisTimeoutError",
        "OsmosisTransportError", "OsmosisValidationError", "ToolArgumentError", "ToolExecutionError",
    ),
    "osmosis_grpc.settings": ("RolloutClientSettings", "RolloutServerSettings", "RolloutSettings"),
    "osmosis_grpc.types.completion": ("RolloutMetrics",),
    "osmosis_grpc.types.requests": ("RolloutRequest",),
    "osmosis_grpc.types.tools": (
        "OpenAIFunctionParametersSchema", "OpenAIFunctionPropertySchema", "OpenAIFunctionSchema",
        "OpenAIFunctionToolSchema",
    ),
}  # fmt: skip
__all__ = sorted(name for names in _WHERE.values() for name in names)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return lookup(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
