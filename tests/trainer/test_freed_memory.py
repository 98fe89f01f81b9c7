"""The chats of an ended rollout are freed at once on both sides. They do not wait for the garbage collector."""

import asyncio
import gc

from osmosis_grpc.engine.running_sample import RunningSample as ServersSample
from osmosis_grpc.protocol.types.conversation_tree import Node
from osmosis_grpc.trainer.chats.sample_state import PendingChat
from osmosis_grpc.trainer.chats.sample_state import SampleState as TrainersSample
from tests.trainer.conftest import USER, reply, talker
from tests.waiting import until

KEPT = {ServersSample, TrainersSample, PendingChat, Node}


def kept():
    return sum(type(each) in KEPT for each in gc.get_objects())


async def test_an_ended_rollout_leaves_no_chats_to_the_garbage_collector(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))

    async def run(name):
        return await trainer.rollout(rollout_id=name, messages=[USER], metadata={"turns": 3})

    await run("first")
    gc.collect()
    gc.disable()
    try:
        before = kept()
        outcomes = await asyncio.gather(*(run(f"r{number}") for number in range(10)))
        assert [outcome.reward for outcome in outcomes] == [1.0] * 10
        await until(lambda: kept() <= before)
    finally:
        gc.enable()
