"""The Osmosis SDK's osmosis_ai.rollout.integrations.agents.strands. Its names do not exist here; using one says so."""

from osmosis_grpc.rollout._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
