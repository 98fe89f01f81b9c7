"""NeMo Gym with an engine that takes required prefixes, as that of NeMo RL does: stock vLLM has no such option."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from comparison.adapter import Place, Rollout
from comparison.systems import nemo_gym


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start the model server with supply_prefix_token_ids."""
    async with nemo_gym.open_system(place, "prefix") as rollout:
        yield rollout
