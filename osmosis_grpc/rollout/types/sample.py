"""The Osmosis SDK's osmosis_ai.rollout.types.sample."""

from osmosis_grpc.agent.grader import RolloutSample

__all__ = ["RolloutSample"]
