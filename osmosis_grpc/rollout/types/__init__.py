"""The Osmosis SDK's osmosis_ai.rollout.types."""

from osmosis_grpc.agent.error_categories import GraderStatus, RolloutErrorCategory
from osmosis_grpc.agent.grader import RolloutSample
from osmosis_grpc.agent.workflow import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig

__all__ = [
    "AgentWorkflowConfig",
    "BaseConfig",
    "ConcurrencyConfig",
    "GraderConfig",
    "GraderStatus",
    "RolloutErrorCategory",
    "RolloutSample",
]
