"""A gRPC-native protocol and server for remote agent rollouts.

Agent authors use osmosis_grpc.rollout, trainers osmosis_grpc.trainer. Importing this
package imports nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "osmosis_reward"]

if TYPE_CHECKING:
    from osmosis_grpc.agent.reward_decorator import osmosis_reward
else:

    def __getattr__(name: str) -> Any:
        if name == "osmosis_reward":
            from osmosis_grpc.agent.reward_decorator import osmosis_reward

            return osmosis_reward
        if not name.startswith("_"):
            from osmosis_grpc.agent.missing_names import missing_name

            known = name in importlib.import_module("osmosis_grpc.rollout").__all__
            text = f"{name} is in osmosis_grpc.rollout: import it from there" if known else missing_name(name)
            if text is not None:
                raise ImportError(text, name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
