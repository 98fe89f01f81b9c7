"""Workers that restart, that never come back, and that have left for good, as trainers see them."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server.workers import routing, siblings
from osmosis_grpc.server.workers.routing import hashed
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer, TrainerConfig
from osmosis_grpc.trainer.transports.callback import link
from tests.server.workers.cluster import workers
from tests.server.workers.test_routing import Replayable
from tests.waiting import until

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
THERE = next(name for name in map("r{}".format, range(99)) if hashed(name, 2) == 1)
"""A rollout whose worker is worker 1 of two."""


class Quick(RolloutAgentLoop):
    """Asks once."""

    name = "quick"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message], reward=1.0)


def calling(cluster, **config):
    return Trainer([cluster.servers[0].address], EchoPolicy(), transport="callback", config=TrainerConfig(**config))


async def test_a_rollout_whose_worker_never_returns_ends_with_an_error_that_names_the_worker(monkeypatch):
    monkeypatch.setattr(siblings, "PATIENCE", 0.0)
    async with workers([Quick()], 2) as cluster:
        await cluster.stop(1)
        async with calling(cluster, lost_after=0.3, max_attempts=2) as trainer:
            with pytest.raises(Unavailable) as lost:
                await asyncio.wait_for(trainer.rollout(rollout_id=THERE, messages=QUESTION), 60)
    assert str(lost.value).startswith(f"rollout {THERE} was lost 2 times: attempt 1: server ")
    assert "has not answered for it for 0.3 s: worker 1 of this server, with the port" in str(lost.value)


async def test_a_running_rollout_whose_worker_never_returns_ends_too(monkeypatch, tmp_path):
    monkeypatch.setattr(siblings, "PATIENCE", 0.0)
    monkeypatch.setattr(routing, "AWAY", 0.1)
    monkeypatch.setattr(link, "PING_PERIOD", 0.3)
    agent = Replayable()
    agent.gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(workers([agent], 2, state=tmp_path))
        trainer = await stack.enter_async_context(calling(cluster, lost_after=0.3, max_attempts=2))
        running = asyncio.ensure_future(trainer.rollout(rollout_id=THERE, messages=QUESTION))
        await until(lambda: cluster.servers[1].engine.capacity().running)
        await until(lambda: trainer.servers[0].open)
        await cluster.stop(1)
        with pytest.raises(Unavailable, match=f"rollout {THERE} was lost 2 times: .*worker 1 of this server"):
            await asyncio.wait_for(running, 60)


async def test_a_rollout_runs_once_when_its_worker_returns(monkeypatch, tmp_path):
    monkeypatch.setattr(siblings, "PATIENCE", 0.0)
    async with workers([Quick()], 2, state=tmp_path) as cluster:
        await cluster.stop(1)
        async with calling(cluster) as trainer:
            running = asyncio.ensure_future(trainer.rollout(rollout_id=THERE, messages=QUESTION))
            await asyncio.wait([running], timeout=0.5)
            assert not running.done()
            await cluster.start(1)
            outcome = await asyncio.wait_for(running, 60)
    assert (outcome.status, outcome.attempt) == (OutcomeStatus.COMPLETED, 1)


async def test_a_worker_that_has_left_for_good_is_forgotten_by_trainers():
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(workers([CalculatorAgent()], 3))
        trainer = await stack.enter_async_context(Trainer([cluster.servers[0].address], EchoPolicy()))
        await trainer.wait_for_server(count=3)
        await cluster.leave(2)
        await until(lambda: len(trainer.servers) == 2)
        await cluster.stop(1)
        await until(lambda: [server.attached for server in trainer.servers] == [True, False])
        await cluster.start(1)
        await until(lambda: [server.attached for server in trainer.servers] == [True, True], timeout=30)


def body(name):
    """An Init of the older HTTP contract."""
    return {"rollout_id": name, "server_url": "http://127.0.0.1:9", "messages": QUESTION, "completion_params": {}}


async def test_an_init_over_http_waits_for_a_worker_that_restarts(tmp_path):
    async with (
        workers([Quick()], 2, state=tmp_path, http=True) as cluster,
        httpx.AsyncClient(base_url=cluster.http, timeout=60) as http,
    ):
        await cluster.stop(1)
        asked = asyncio.ensure_future(http.post("/v1/rollout/init", json=body(THERE)))
        await asyncio.wait([asked], timeout=0.5)
        assert not asked.done()
        await cluster.start(1)
        answer = await asked
        assert answer.status_code == 202, answer.text
        assert cluster.holders(THERE) == [1]


async def test_an_init_over_http_says_what_to_do_if_its_worker_does_not_return(monkeypatch):
    monkeypatch.setattr(siblings, "PATIENCE", 0.0)
    async with workers([Quick()], 2, http=True) as cluster, httpx.AsyncClient(base_url=cluster.http) as http:
        await cluster.stop(1)
        answer = await http.post("/v1/rollout/init", json=body(THERE))
    assert (answer.status_code, answer.headers["retry-after"]) == (504, "1")
    assert "it possibly has the rollout: send the same request to this server again" in answer.json()["detail"]
