"""The Osmosis SDK's osmosis_ai.rollout.validator."""

from osmosis_grpc.agent.validator import AgentLoopValidationError, ValidationResult, validate_agent_loop

__all__ = ["AgentLoopValidationError", "ValidationResult", "validate_agent_loop"]
