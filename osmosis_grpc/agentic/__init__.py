"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make."""

from osmosis_grpc.agentic.llm import AnthropicFunction, LLMConfig, LLMFunction, OpenAIFunction, policy_of
from osmosis_grpc.agentic.llm_retries import LLMError, Retries
from osmosis_grpc.agentic.trajectory import StepType, StopReason, Trajectory, TrajectoryStep

__all__ = [
    "AnthropicFunction",
    "LLMConfig",
    "LLMError",
    "LLMFunction",
    "OpenAIFunction",
    "Retries",
    "StepType",
    "StopReason",
    "Trajectory",
    "TrajectoryStep",
    "policy_of",
]
