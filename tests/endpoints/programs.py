"""Runs functions as agents: each gets the base URL and the key of its rollout."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

USER = {"role": "user", "content": "What is 2 + 3?"}


class Program(RolloutAgentLoop):
    """Calls a function with the endpoint of each rollout. The function returns the reward."""

    name = "program"

    def __init__(self, program: Callable[[Any], Awaitable[float | None]]) -> None:
        self._program = program
        self.endpoints: Any = None

    async def run(self, ctx: Any) -> Any:
        with self.endpoints.open(ctx) as endpoint:
            return ctx.complete(reward=await self._program(endpoint))


@asynccontextmanager
async def serving(program: Callable[[Any], Awaitable[float | None]], waits: Waits | None = None):
    """Yields the server of a program's rollouts, and the HTTP server that serves the base URLs."""
    agent = Program(program)
    agent.endpoints = Endpoints(lambda: f"http://{http.address}", waits)
    async with HttpServer(base_url_app(agent.endpoints)) as http, AgentServer([agent], port=0) as server:
        yield server, http


@asynccontextmanager
async def running(
    program: Callable[[Any], Awaitable[float | None]], policy: Any, waits: Waits | None = None, **options: Any
):
    """Yields a trainer for rollouts of a program, and the HTTP server that serves the base URLs."""
    async with serving(program, waits) as (server, http), Trainer([server.address], policy, **options) as trainer:
        yield trainer, http


async def outcome_of(program: Any, policy: Any, **options: Any) -> Any:
    """Returns the outcome of one rollout."""
    async with running(program, policy, **options) as (trainer, _):
        return await trainer.rollout(rollout_id="r1", messages=[USER])
