"""Old and new trainers against old and new agent servers, all of them real, on free ports.

    trainer     agent server    between them
    new         new             gRPC, with a callback
    new         old             gRPC to an AgentServer that hosts an HttpAgent
    attached    new             one stream, opened by the trainer
    attached    old             one stream to an AgentServer that hosts an HttpAgent
    dialled     new             one stream, opened by the agent server
    old         new             HTTP beside an AgentServer
    old         old             HTTP beside an AgentServer that hosts an HttpAgent

A combination's servers stay up for all tests of a module; each rollout has a trainer of its own.
"""

import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import pytest
import pytest_asyncio

from osmosis_gateway.http_agent import HttpAgent
from osmosis_gateway.http_server import serve_http
from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.settings.settings import RolloutClientSettings, RolloutSettings
from osmosis_grpc.trainer import RolloutClient, Trainer, TrajectoryEvent
from tests.legacy.agent import Agent
from tests.legacy.new_trainer import AttachedTrainer, DialledTrainer, Hub, NewTrainer
from tests.legacy.old_agent_server import OldAgentServer
from tests.legacy.old_trainer import OldTrainer
from tests.legacy.scenarios import Outcome, Scenario

COMBINATIONS = [
    ("new", "new"),
    ("new", "old"),
    ("attached", "new"),
    ("attached", "old"),
    ("dialled", "new"),
    ("old", "new"),
    ("old", "old"),
]
ENGINE = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2), stop_again_after=(0.05, 0.1))
CLIENT = RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A combination's servers."""

    agent: Agent
    old_agent_server: OldAgentServer | None
    make_trainer: Callable[[Scenario], OldTrainer | NewTrainer]
    address: str
    """What the trainer sends its Inits to."""
    watch: "RolloutClient | Within"
    """Sees what the agent server in the middle recorded."""


@dataclass(frozen=True, slots=True)
class Within:
    """Reads as a RolloutClient does, for rollouts that belong to the trainer that was dialled."""

    server: AgentServer
    trainer: Trainer

    def events(self, rollout_id: str, *, attempt: int = 0) -> AsyncIterator[TrajectoryEvent]:
        """Return its events, read by the trainer."""
        return self.trainer.events(rollout_id, tokens=True)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """Return the rollout as the server has it."""
        engine = self.server.engine
        record = engine.rollouts.get(f"trainer at {self.trainer.address}", rollout_id)
        return await engine.rollouts.info(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A scenario, played to its end."""

    scenario: Scenario
    """Under the name that it was played with: the rollout's id."""
    outcome: Outcome
    error: str
    """The error text of the outcome."""
    trainer: OldTrainer | NewTrainer
    sides: Sides


Play = Callable[[Scenario], Awaitable[Played]]


@pytest.fixture(scope="module", params=COMBINATIONS, ids=[f"{t}-trainer-{a}-agent" for t, a in COMBINATIONS])
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which kind of trainer plays with which kind of agent server."""
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(combination: tuple[str, str]) -> AsyncIterator[Sides]:
    """The combination's servers, up."""
    trainer_kind, agent_kind = combination
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        agent, old_agent_server = Agent(), None
        loop = agent
        if agent_kind == "old":
            old_agent_server = await enter(OldAgentServer(agent))
            loop = await enter(HttpAgent(old_agent_server.address))
        hub = Hub()
        if trainer_kind == "dialled":
            await enter(hub.trainer)
        connect = [hub.trainer.address] if trainer_kind == "dialled" else []
        server = await enter(AgentServer([loop], port=0, config=ENGINE, connect=connect))
        kinds = {"new": NewTrainer, "attached": AttachedTrainer, "dialled": partial(DialledTrainer, hub)}
        make_trainer, address = kinds.get(trainer_kind, NewTrainer), server.address
        if trainer_kind == "old":
            http = await enter(serve_http(server, port=0, settings=RolloutSettings(client=CLIENT)))
            make_trainer, address = OldTrainer, f"http://{http.address}"
        watch = await enter(RolloutClient(server.address))
        if trainer_kind == "dialled":
            watch = Within(server, hub.trainer)
        yield Sides(
            agent=agent, old_agent_server=old_agent_server, make_trainer=make_trainer, address=address, watch=watch
        )


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def play(sides: Sides) -> AsyncIterator[Play]:
    """Plays a scenario through the combination; the trainer is closed after the test."""
    async with AsyncExitStack() as stack:

        async def played(scenario: Scenario) -> Played:
            named = dataclasses.replace(scenario, name=f"{scenario.name}-{next(_numbers)}")
            trainer = await stack.enter_async_context(sides.make_trainer(named))
            outcome, error = await trainer.play(sides.address)
            return Played(scenario=named, outcome=outcome, error=error, trainer=trainer, sides=sides)

        yield played
