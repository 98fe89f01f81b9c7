"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make."""

from osmosis_grpc.agentic.llm import LLMFunction, policy_of
from osmosis_grpc.agentic.trajectory import StepType, StopReason, Trajectory, TrajectoryStep

__all__ = ["LLMFunction", "StepType", "StopReason", "Trajectory", "TrajectoryStep", "policy_of"]
