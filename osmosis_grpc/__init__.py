"""A gRPC-native protocol and server for remote agent rollouts.

Agent authors use osmosis_grpc.rollout, trainers osmosis_grpc.trainer. Importing this
package imports nothing heavy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_grpc.agent.reward import osmosis_reward as osmosis_reward

__version__ = "0.1.0"
__all__ = ["__version__", "osmosis_reward"]


def __getattr__(name: str) -> Any:
    if name == "osmosis_reward":
        from osmosis_grpc.agent.reward import osmosis_reward

        return osmosis_reward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
