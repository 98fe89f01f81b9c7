"""No system at all: agents call the engine, and nothing is recorded. It is the floor of every cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from comparison.adapter import Delivered, Place, Rollout
from comparison.agents import Agents


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Give the engine's own address to the agents."""
    agents = Agents(place.agents)

    async def rollout(case: str, key: str, limit: float) -> Delivered:
        answer = await agents.run_for(limit, case=case, key=key, base_url=place.engine)
        return Delivered([], "" if answer["ok"] else answer["error"])

    yield rollout
