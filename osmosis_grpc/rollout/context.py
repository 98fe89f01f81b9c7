"""The Osmosis SDK's osmosis_ai.rollout.context."""

from osmosis_grpc.agent.context import RolloutContext, get_rollout_context
from osmosis_grpc.agent.grader import GraderContext
from osmosis_grpc.agent.workflow import AgentWorkflowContext

__all__ = ["AgentWorkflowContext", "GraderContext", "RolloutContext", "get_rollout_context"]
