"""The Osmosis SDK's osmosis_ai.rollout.config."""

from osmosis_grpc.settings import RolloutClientSettings, RolloutServerSettings, RolloutSettings

__all__ = ["RolloutClientSettings", "RolloutServerSettings", "RolloutSettings"]
