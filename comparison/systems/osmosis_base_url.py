"""osmosis_grpc, with the agent as a program that calls the rollout's base URL."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from comparison.adapter import Place, Rollout
from comparison.agents import Agents
from comparison.systems import osmosis_native
from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult


class BaseUrl(RolloutAgentLoop):
    """Has a case run in the process of the agents."""

    name = "base_url"
    agents: Agents | None = None

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """Return no tools: the cases bring their own."""
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Start the agent, and wait for it."""
        self.agents = self.agents or Agents(os.environ["COMPARISON_AGENTS"])
        meta = ctx.request.metadata
        job = {"base_url": ctx.chat_completions_url, "api_key": ctx.api_key}
        answer = await self.agents.run(case=meta["case"], key=meta["key"], **job)
        return ctx.complete(reward=1.0) if answer["ok"] else ctx.error(answer["error"])


base_url = BaseUrl()


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start a server with the agent, and open a trainer."""
    async with osmosis_native.open_system(place, "osmosis_base_url:base_url") as rollout:
        yield rollout
