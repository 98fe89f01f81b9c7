"""The Osmosis SDK's osmosis_ai.rollout.config."""

from osmosis_grpc.rollout.config import settings
from osmosis_grpc.rollout.config.settings import *  # noqa: F403

__all__ = settings.__all__
