"""Events of a rollout that was only just asked for."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import Internal, NotFound
from osmosis_grpc.protocol.types import events
from osmosis_grpc.trainer import Trainer
from tests.trainer.conftest import USER, reply, talker
from tests.waiting import until


async def kinds(trainer, rollout_id):
    return [type(event.kind) async for event in trainer.events(rollout_id)]


async def test_events_right_after_rollout_wait_for_it(serve):
    server = await serve(talker())
    async with Trainer([server.address], reply) as trainer:  # perhaps before the server is attached
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        told = await kinds(trainer, "r1")
        assert (told[0], told[-1]) == (events.Accepted, events.Delivered)
        assert (await rollout).reward == 1.0


async def test_events_wait_for_a_queued_rollout(serve):
    agent = talker()
    agent.gate("r1")
    server = await serve(agent, max_concurrent=1, max_queued=0)
    async with Trainer([server.address], reply) as trainer:
        first = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        await until(lambda: agent.started)
        second = asyncio.create_task(trainer.rollout(rollout_id="r2", messages=[USER]))
        follower = asyncio.create_task(kinds(trainer, "r2"))
        await asyncio.sleep(0)
        assert not follower.done()
        agent.release("r1")
        assert (await follower)[0] is events.Accepted
        await asyncio.gather(first, second)


async def test_events_of_a_rollout_that_is_refused_raise_what_it_is_refused_with(serve):
    agent = talker()
    agent.get_tools = lambda request: 1 / 0
    server = await serve(agent)
    async with Trainer([server.address], reply) as trainer:
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        with pytest.raises(Internal, match="get_tools"):
            await kinds(trainer, "r1")
        with pytest.raises(Internal):
            await rollout
        with pytest.raises(NotFound):
            await kinds(trainer, "never")
