"""Connections that stay and carry nothing any more: noticed by silence, cut by proxies, and mended."""

import asyncio
import logging

import pytest

from osmosis_grpc.protocol.stream import stream_machine
from osmosis_grpc.server import callbacks
from osmosis_grpc.trainer import RolloutClient, Trainer, TrainerConfig
from tests.attach.agents import Talker
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, requests
from tests.attach.silent_chats import WAYS, SilentOnce, silent_rollout
from tests.callback_trainer import CallbackTrainer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_redial")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello comes soon, or never."""
    monkeypatch.setattr(stream_machine, "HELLO_TIMEOUT", 0.3)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_what_comes_no_more_in_one_direction_is_noticed_and_mended(stack, serve, impatient, caplog, direction):
    server = await serve(Talker(), heartbeat_interval=0.15, heartbeat_timeout=0.45)
    proxy = await stack.enter_async_context(CuttingProxy(server.address))
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    trainer = await stack.enter_async_context(Trainer([proxy.address], policy, config=TrainerConfig(lost_after=60)))
    asked = list(requests("silent", 5))

    async def gather() -> None:
        async for outcome in trainer.run(asked):
            outcomes.append(outcome)

    running = asyncio.create_task(gather())
    await until(lambda: policy.open == 5, "chats open")
    with caplog.at_level(logging.WARNING):
        proxy.hold(direction)
        policy.gate.set()
        await asyncio.wait_for(running, 3)
    assert [record for record in caplog.records if record.name == "osmosis_grpc.trainer.log_warnings"]
    check_run([request.rollout_id for request in asked], outcomes, policy)
    assert {outcome.attempt for outcome in outcomes} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_chat_that_is_silent_for_longer_than_a_proxy_allows_is_joined(tmp_path, way):
    assert await silent_rollout(way, seconds=8.0, folder=tmp_path, idle_limit=2.0) > 0


@pytest.mark.slow
async def test_a_chat_that_is_cut_for_longer_than_the_grace_was_with_its_trainer(stack, serve, monkeypatch):
    """Each call stands until the proxy cuts it: no time in which the trainer was away."""
    monkeypatch.setattr(callbacks, "REACHED_AFTER", 0.4)
    policy = SilentOnce(6.0)
    trainer = await stack.enter_async_context(CallbackTrainer(policy))
    proxy = await stack.enter_async_context(CuttingProxy(trainer.callback().target, idle_limit=0.5))
    client = await stack.enter_async_context(RolloutClient((await serve(Talker(), trainer_grace=2.0)).address))
    [request] = requests("held", 1)
    await client.init(request, callback=trainer.callback(target=proxy.address))
    check_run([request.rollout_id], [await trainer.outcome(request.rollout_id, 30)], policy)
    assert proxy.cut_when_idle > 0


@pytest.mark.slow
async def test_outages_between_calls_that_had_reached_the_trainer_are_each_counted_alone(stack, serve, monkeypatch):
    monkeypatch.setattr(callbacks, "REACHED_AFTER", 0.3)
    policy = CountingPolicy()
    policy.gate.clear()
    trainer = await stack.enter_async_context(CallbackTrainer(policy))
    proxy = await stack.enter_async_context(CuttingProxy(trainer.callback().target))
    server = await serve(Talker(), trainer_grace=3.0, retry_delay=(0.02, 0.2))
    client = await stack.enter_async_context(RolloutClient(server.address))
    [request] = requests("cut", 1)
    await client.init(request, callback=trainer.callback(target=proxy.address))
    for _ in range(4):  # longer than the grace period in all
        await until(lambda: proxy.connections, "a connection")
        await asyncio.sleep(1.0)  # the call stands for long enough
        proxy.refusing = True
        proxy.cut()
        await asyncio.sleep(0.3)  # the outage
        proxy.refusing = False
    policy.gate.set()
    check_run([request.rollout_id], [await trainer.outcome(request.rollout_id, 30)], policy)
