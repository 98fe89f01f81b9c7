"""The Osmosis SDK's osmosis_ai.rollout.types.config."""

from osmosis_grpc.agent.workflow import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig

__all__ = ["AgentWorkflowConfig", "BaseConfig", "ConcurrencyConfig", "GraderConfig"]
