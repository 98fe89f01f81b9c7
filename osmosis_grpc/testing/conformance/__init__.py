"""The conformance suite checks an agent server or a trainer in any language. docs/conformance.md describes it.

`osmosis_grpc.testing.conformance:agent` is the agent loop that an agent server under test hosts.
"""

from osmosis_grpc.testing.conformance.agent import ConformanceAgent, agent

__all__ = ["ConformanceAgent", "agent"]
