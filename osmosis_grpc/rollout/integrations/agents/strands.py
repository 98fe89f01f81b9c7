"""The Osmosis SDK's osmosis_ai.rollout.integrations.agents.strands. Needs the extra `strands`."""

from osmosis_grpc.compat.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
