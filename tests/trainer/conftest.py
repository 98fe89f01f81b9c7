"""Fixtures: scripted agents, and trainers that are attached to them."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.trainer.config import TrainerConfig
from tests.trainer.deployment import Deployment, Policy
from tests.waiting import until

USER = {"role": "user", "content": "What is 2 + 3?"}
PATIENCE = 10.0
"""Seconds after which something that should happen is taken not to happen."""


def reply(request):
    """A policy: sync, says which chat it answers."""
    return answer(request, f"{request.sample} {request.chat_number}")


class Talker(RolloutAgentLoop):
    """Chats `metadata["turns"]` times (1) and completes; waits at its gate before, where it has one."""

    name = "talker"

    def __init__(self, name="talker", tools=()):
        type(self).name = name
        self.name = name
        self.tools = list(tools)
        self.started, self.ended_ones, self.attempts = [], [], []
        self.running = Counter()
        self.gates = {}

    def gate(self, *names):
        """Rollouts that wait until they are let go."""
        for name in names:
            self.gates[name] = asyncio.Event()

    def release(self, *names):
        for name in names or list(self.gates):
            self.gates[name].set()

    def get_tools(self, request):
        return self.tools

    async def run(self, ctx):
        name = ctx.request.rollout_id
        self.started.append(name)
        self.attempts.append((name, ctx.request.attempt))
        self.running[name] += 1
        try:
            if name in self.gates:
                await self.gates[name].wait()
            messages = list(ctx.request.messages)
            for turn in range(ctx.request.metadata.get("turns", 1)):
                messages.append((await ctx.chat(messages)).message)
                messages.append({"role": "user", "content": f"after {turn + 1}"})
            return ctx.complete(messages, reward=1.0)
        finally:
            self.running[name] -= 1

    def ended(self, rollout_id, attempt):
        self.ended_ones.append(rollout_id)


def talker(name="talker", tools=()):
    """A Talker of its own class, and so with a name of its own."""
    return type("A", (Talker,), {"name": name})(name, tools)


BOTH_TRANSPORTS = {
    "test_run",
    "test_groups",
    "test_evaluate",
    "test_pause",
    "test_events_at_once",
    "test_superseded",
    "test_abandoned",
    "test_policy_errors",
}
"""Modules whose tests with `attach_to` run over attachments and by callbacks."""


def pytest_generate_tests(metafunc):
    if "transport" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in BOTH_TRANSPORTS:
        metafunc.parametrize("transport", ["attach", "callback"])


@pytest.fixture
def transport():
    """The transport of attach_to()."""
    return "attach"


def trainer_of(targets, policy, *, transport="attach", ledger=None, **config):
    """Makes a Trainer; `config` are fields of TrainerConfig."""
    return Trainer(targets, policy, transport=transport, ledger=ledger, config=TrainerConfig(**config))


@asynccontextmanager
async def attached(policy, *servers, **options):
    """A trainer that has reached all these servers."""
    async with trainer_of([server.address for server in servers], policy, **options) as trainer:
        await until(lambda: all(server.attached for server in trainer.servers))
        yield trainer


@pytest.fixture
def attach_to(stack, transport):
    """Starts a trainer that has reached its servers; closed after the test."""

    async def start(policy, *servers, **options):
        return await stack.enter_async_context(attached(policy, *servers, transport=transport, **options))

    return start


@pytest.fixture
async def policy():
    """Says fine; a test may hold it."""
    return Policy()


@pytest.fixture
def listening(policy, stack):
    """Starts a trainer that agent servers dial; gives raw ones and rollouts."""

    async def start(*targets, ledger=None, **options):
        config = TrainerConfig(**options)
        trainer = Trainer(targets, policy, listen="127.0.0.1:0", ledger=ledger, config=config)
        return Deployment(await stack.enter_async_context(trainer), stack)

    return start
