from osmosis_grpc.agent.reward_decorator import osmosis_reward as osmosis_reward
from osmosis_grpc.rollout import CompletionsResult as CompletionsResult
from osmosis_grpc.rollout import InitResponse as InitResponse
from osmosis_grpc.rollout import MissingAPIKeyError as MissingAPIKeyError
from osmosis_grpc.rollout import ModelNotFoundError as ModelNotFoundError
from osmosis_grpc.rollout import OpenAIFunctionToolSchema as OpenAIFunctionToolSchema
from osmosis_grpc.rollout import OsmosisLLMClient as OsmosisLLMClient
from osmosis_grpc.rollout import OsmosisRolloutError as OsmosisRolloutError
from osmosis_grpc.rollout import OsmosisServerError as OsmosisServerError
from osmosis_grpc.rollout import OsmosisTimeoutError as OsmosisTimeoutError
from osmosis_grpc.rollout import OsmosisTransportError as OsmosisTransportError
from osmosis_grpc.rollout import OsmosisValidationError as OsmosisValidationError
from osmosis_grpc.rollout import ProviderRequestError as ProviderRequestError
from osmosis_grpc.rollout import RolloutAgentLoop as RolloutAgentLoop
from osmosis_grpc.rollout import RolloutContext as RolloutContext
from osmosis_grpc.rollout import RolloutMetrics as RolloutMetrics
from osmosis_grpc.rollout import RolloutRequest as RolloutRequest
from osmosis_grpc.rollout import RolloutResponse as RolloutResponse
from osmosis_grpc.rollout import RolloutResult as RolloutResult
from osmosis_grpc.rollout import RubricResult as RubricResult
from osmosis_grpc.rollout import create_app as create_app
from osmosis_grpc.rollout import get_agent_loop as get_agent_loop
from osmosis_grpc.rollout import list_agent_loops as list_agent_loops
from osmosis_grpc.rollout import register_agent_loop as register_agent_loop

__version__: str

__all__ = [
    "CompletionsResult",
    "InitResponse",
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "OpenAIFunctionToolSchema",
    "OsmosisLLMClient",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "ProviderRequestError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RubricResult",
    "__version__",
    "create_app",
    "get_agent_loop",
    "list_agent_loops",
    "osmosis_reward",
    "register_agent_loop",
]
