"""The Osmosis SDK's osmosis_ai.rollout.server.api_key. An import of its names says what to use instead."""

from osmosis_grpc.compat.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
