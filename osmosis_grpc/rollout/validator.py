"""The Osmosis SDK's osmosis_ai.rollout.validator."""

from osmosis_grpc.agent.validator import AgentLoopValidationError, ValidationResult, validate_agent_loop
from osmosis_grpc.agent.validator import Finding as ValidationError
from osmosis_grpc.agent.workflow_validator import validate_workflow

__all__ = [
    "AgentLoopValidationError",
    "ValidationError",
    "ValidationResult",
    "validate_agent_loop",
    "validate_workflow",
]
