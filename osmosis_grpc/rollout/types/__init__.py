"""The Osmosis SDK's osmosis_ai.rollout.types."""

from osmosis_grpc.agent.grader import RolloutSample
from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig
from osmosis_grpc.compat.error_categories import GraderStatus, RolloutErrorCategory

__all__ = [
    "AgentWorkflowConfig",
    "BaseConfig",
    "ConcurrencyConfig",
    "GraderConfig",
    "GraderStatus",
    "RolloutErrorCategory",
    "RolloutSample",
]
