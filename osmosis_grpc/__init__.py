"""A gRPC-native protocol and server for remote agent rollouts.

Agent authors use osmosis_grpc.agent, trainers osmosis_grpc.trainer. This module has the names of the Osmosis SDK's
osmosis_ai. Importing it imports nothing heavy.
"""

import contextlib
import importlib
import sys
from typing import Any

__version__ = "0.1.0"
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


def __getattr__(name: str) -> Any:
    """Return the object of a name. Raises ImportError for a known name that is elsewhere or missing."""
    if name == "osmosis_reward":
        return importlib.import_module("osmosis_grpc.agent.reward_decorator").osmosis_reward
    if not name.startswith("_"):
        rollout = importlib.import_module("osmosis_grpc.rollout")
        if name in __all__:
            return getattr(rollout, name)
        if name in rollout.__all__:
            raise ImportError(f"{name} is in osmosis_grpc.rollout: import it from there", name=__name__)
        with contextlib.suppress(AttributeError):
            getattr(rollout, name)  # raises ImportError for a name of an older system
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _OfEval:
    """Lets `osmosis_grpc.eval.rubric` be imported, whose finder is that of `osmosis_grpc.rollout`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the SDK's `eval`; None for any other module."""
        if name != f"{__name__}.eval":
            return None
        importlib.import_module(f"{__name__}.rollout")
        return importlib.import_module(f"{__name__}.compat.older_paths").OlderModules().find_spec(name, path)


sys.meta_path.append(_OfEval)  # type: ignore[arg-type]


def __dir__() -> list[str]:
    """Return the names."""
    return __all__
