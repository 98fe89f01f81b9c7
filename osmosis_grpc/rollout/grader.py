"""The Osmosis SDK's osmosis_ai.rollout.grader."""

from osmosis_grpc.agent.grader import Grader

__all__ = ["Grader"]
