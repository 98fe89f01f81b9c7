"""The Osmosis SDK's osmosis_ai.rollout.agent_workflow."""

from osmosis_grpc.agent.workflow import AgentWorkflow

__all__ = ["AgentWorkflow"]
