"""Waits end with their client or trainer, and outcomes that no caller takes do not pile up in a callback trainer."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutClient, ServerSecurity, Trainer
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import collect, within
from tests.waiting import until

COMPLETED = OutcomeStatus.COMPLETED


async def test_events_end_when_their_client_is_closed(serve, train):
    agent = talker()
    agent.gate("r")
    server, trainer = await serve(agent), await train(reply)
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
        events = client.events("r")
        await within(anext(events))
        following = asyncio.ensure_future(within(collect(events)))
        await until(lambda: agent.started)
    with pytest.raises(Unavailable, match="client was closed"):
        await following
    with pytest.raises(Unavailable, match="client was closed"):
        await within(anext(client.events("r")))
    with pytest.raises(Unavailable, match="client was closed"):
        await within(client.get("r"))


async def test_events_end_that_have_not_reached_their_server():
    async with RolloutClient("127.0.0.1:1", lost_after=3600.0) as client:
        following = asyncio.ensure_future(within(collect(client.events("r"))))
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await following


@pytest.mark.parametrize("transport", ["attach", "callback"])
async def test_every_wait_ends_when_its_trainer_is_closed(serve, transport):
    agent = talker()
    agent.gate("r")
    server = await serve(agent)
    async with Trainer(server.address, reply, transport=transport) as trainer:
        waiting = [asyncio.ensure_future(within(trainer.rollout(rollout_id="r", messages=[USER])))]
        await until(lambda: agent.started)
        waiting.append(asyncio.ensure_future(within(collect(trainer.events("r")))))
        await asyncio.sleep(0)
    for task in waiting:
        with pytest.raises(Unavailable, match="closed"):
            await task


async def test_an_outcome_that_no_caller_waits_for_stays_with_its_server(serve):
    agent = talker()
    agent.gate("r")
    server, security = await serve(agent), ServerSecurity("the same in both")
    async with Trainer(server.address, reply, transport="callback", security=security) as trainer:
        left = asyncio.ensure_future(within(trainer.rollout(rollout_id="r", messages=[USER], metadata={"turns": 0})))
        await until(lambda: agent.started)
    with pytest.raises(Unavailable, match="closed"):
        await left
    options = {"transport": "callback", "security": security, "listen": trainer.address}
    async with Trainer(server.address, reply, **options) as trainer:
        agent.release()
        await until(lambda: server.engine.capacity().undelivered)
        assert trainer.metrics()["rollouts/open"] == 0
        taken = await within(trainer.rollout(rollout_id="r", messages=[USER], metadata={"turns": 0}))
        assert (taken.status, taken.attempt) == (COMPLETED, 1)
        await until(lambda: not server.engine.capacity().undelivered)
