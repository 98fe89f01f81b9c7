"""Handlers called twice, calls lost in either direction, commits that succeed and are reported as failed.

Whatever is lost, each effect comes once: an agent runs once, a chat is sampled once, an outcome is applied once.
"""

import asyncio
import random
import sqlite3
from collections import Counter

import pytest

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.server import attachment as attachments
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.faults.chaos import FAULTS, Losing, intercept, losing_frames, twice
from tests.faults.kill_loop.agents import Passenger, Traveller
from tests.faults.kill_loop.trainer import requests
from tests.faults.pure import Counted, check_equal, gathering, undisturbed
from tests.waiting import until

COUNT = 20
P = 0.25
QUICK = {"outbox_delay": (0.02, 0.1), "retry_delay": (0.02, 0.1), "stop_again_after": (0.05, 0.1)}


class Counting:
    """Both agents of the kill loop, and how often each rollout was run."""

    def __init__(self) -> None:
        runs = self.runs = Counter()

        class Resting(Passenger):
            async def run(self, ctx):
                runs[ctx.request.rollout_id] += 1
                return await super().run(ctx)

        class Going(Traveller):
            async def run(self, ctx):
                runs[ctx.request.rollout_id] += 1
                return await super().run(ctx)

        self.loops = [Resting(), Going()]


async def called_back(server: AgentServer, policy: Counted, count: int = COUNT) -> list:
    """Rollouts with callbacks; each Init is asked until it is answered."""
    async with CallbackTrainer(policy) as trainer, RolloutClient(server.address) as client:

        async def one(request):
            while True:
                try:
                    await client.init(request, callback=trainer.callback())
                    return await trainer.outcome(request.rollout_id)
                except Unavailable:
                    await asyncio.sleep(0.02)  # between two tries

        ended = await asyncio.gather(*(one(request) for request in requests(count, set())))
        await until(lambda: not server.engine.capacity().undelivered)
        with pytest.raises(TimeoutError):  # nothing more comes
            async with asyncio.timeout(0.2):
                await anext(trainer.outcomes())
        return ended


async def test_handlers_called_twice_have_one_effect(stack, tmp_path, monkeypatch):
    expected = await undisturbed(tmp_path, COUNT)
    seen = twice(monkeypatch)
    for way in ("callback", "attach"):
        agents, policy, outcomes = Counting(), Counted(tmp_path), []
        async with AgentServer(agents.loops, port=0, config=ServerConfig(**QUICK)) as server:
            if way == "callback":
                outcomes = await called_back(server, policy)
            else:
                async with Trainer(server.address, policy) as trainer:
                    await gathering(trainer, COUNT, outcomes)
                    numbers = [event.event_number async for event in trainer.events("r1")]
                    assert numbers == list(range(1, len(numbers) + 1))
                    assert len(await trainer.cancel(everything=True)) == 0
        check_equal(outcomes, expected, policy)
        assert agents.runs == Counter(dict.fromkeys(expected, 1))
    for name in ("Init", "Chat", "Complete", "init", "init_reply", "chat", "chat_reply", "complete", "complete_reply"):
        assert seen[name] >= COUNT, name


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_calls_lost_there_back_and_in_between_have_one_effect(stack, tmp_path, monkeypatch, seed):
    expected = await undisturbed(tmp_path, COUNT)
    losing = Losing(P, seed)
    intercept(monkeypatch, losing.wrap)
    agents, policy = Counting(), Counted(tmp_path)
    async with AgentServer(agents.loops, port=0, config=ServerConfig(**QUICK)) as server:
        outcomes = await called_back(server, policy)
    check_equal(outcomes, expected, policy)
    assert agents.runs == Counter(dict.fromkeys(expected, 1))
    for rpc in ("Chat", "Complete", "Init"):
        print(f"\n{rpc:9}", *(f"{fault} lost {losing.done[rpc, fault]}x" for fault in FAULTS), end="")
    assert sum(losing.done["Chat", fault] > 0 for fault in FAULTS) == 3


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_frames_lost_though_the_stream_lives_are_asked_for_again(tmp_path, monkeypatch, seed):
    """What is silent is asked again: chats and outcomes by the server, whose answers are lost here."""
    expected = await undisturbed(tmp_path, COUNT)
    monkeypatch.setattr(attachments, "RESEND_INTERVAL", 0.05)
    lost = losing_frames(monkeypatch, {"chat", "chat_reply", "complete", "complete_reply"}, P, seed)
    agents, policy, outcomes = Counting(), Counted(tmp_path), []
    config = ServerConfig(**QUICK, chat_silence=0.2)
    async with AgentServer(agents.loops, port=0, config=config) as server, Trainer(server.address, policy) as trainer:
        await gathering(trainer, COUNT, outcomes)
        await until(lambda: not server.engine.capacity().undelivered)
    check_equal(outcomes, expected, policy)
    assert agents.runs == Counter(dict.fromkeys(expected, 1))
    assert len(lost) == 4, lost


class Late(sqlite3.Connection):
    """Commits, and says now and then that it did not."""

    dice = random.Random(0)
    probability = 0.0
    late = 0

    def execute(self, statement, *values):
        done = super().execute(statement, *values)
        if statement == "COMMIT" and self.dice.random() < self.probability:
            type(self).late += 1
            raise sqlite3.OperationalError("the disk did not answer in time")
        return done


@pytest.fixture
def late(monkeypatch):
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: real(*args, **named, factory=Late))
    monkeypatch.setattr("osmosis_grpc.storage.journal.writer.RETRY", 0.05)
    yield Late
    Late.probability, Late.late = 0.0, 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("way", ["attach", "callback"])
async def test_commits_that_are_reported_as_failed_have_one_effect(tmp_path, late, seed, way):
    """Execute and time out: the journal has what its server thinks it has not."""
    expected = await undisturbed(tmp_path, COUNT)
    agents, policy, outcomes = Counting(), Counted(tmp_path), []
    late.dice, late.probability = random.Random(seed), 0.1
    state, config = tmp_path / "state", ServerConfig(**QUICK)
    async with AgentServer(agents.loops, port=0, config=config, state_dir=state) as server:
        if way == "callback":
            outcomes = await called_back(server, policy)
        else:
            async with Trainer(server.address, policy) as trainer:
                await asyncio.wait_for(gathering(trainer, COUNT, outcomes), 30)
                await asyncio.sleep(0.2)  # time for what must not come
    assert late.late
    check_equal(outcomes, expected, policy)
    assert agents.runs == Counter(dict.fromkeys(expected, 1)), "an Init that is asked again starts nothing more"
    late.probability = 0.0
    async with AgentServer(agents.loops, port=0, config=config, state_dir=state) as server:
        await asyncio.sleep(0.5)  # time for what must not come
        async with RolloutClient(server.address) as client:
            infos = {info.rollout_id: info async for info in client.rollouts()}
    for name, info in infos.items():
        assert name in expected, info
