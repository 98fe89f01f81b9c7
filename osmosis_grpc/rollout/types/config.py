"""The Osmosis SDK's osmosis_ai.rollout.types.config."""

from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig

__all__ = ["AgentWorkflowConfig", "BaseConfig", "ConcurrencyConfig", "GraderConfig"]
