"""An attachment as a raw trainer sees it: signs of life, and a trainer that is away."""

import asyncio
import re
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import HEARTBEAT, subscribe
from tests.server.attached import Talk, bystander_watcher, kinds_until
from tests.waiting import until

COMPLETED, FAILED = outcome_pb2.OUTCOME_STATUS_COMPLETED, outcome_pb2.OUTCOME_STATUS_FAILED


async def test_heartbeats_keep_a_stream_alive(serve):
    server = await serve(Talk(), heartbeat_interval=0.05, heartbeat_timeout=0.8)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        until = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < until:
            await stream.next("heartbeat")
            await stream.send(HEARTBEAT)
        await trainer.start("r")
        assert (await trainer.finish()).status == COMPLETED


async def test_a_stream_on_which_nothing_is_heard_ends_and_its_rollouts_wait(serve):
    server = await serve(Talk(), heartbeat_interval=0.1, heartbeat_timeout=0.5)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        assert await stream.ended() == "UNAVAILABLE"
        assert "the other side sent nothing" in stream.details
        await trainer.attach()
        assert await trainer.chat() == chat
        await trainer.answer(chat)
        assert (await trainer.settled()).status == COMPLETED


async def test_the_activity_of_a_rollout_says_that_its_trainer_is_away(serve):
    server = await serve(Talk())

    def activity():
        return server.engine.rollouts.get("", "r").activity().description

    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.chat()
        assert activity() == "chat main 1"
        await trainer.stream.cut()
        await until(lambda: "not connected" in activity())
        assert re.fullmatch(r"chat main 1 \(its trainer is not connected since \d\d:\d\d:\d\dZ\)", activity())
        await trainer.attach()
        assert activity() == "chat main 1"
        assert (await trainer.finish()).status == COMPLETED


async def test_rollouts_end_when_their_trainer_stays_away_and_are_delivered_when_it_comes(serve):
    server = await serve(Talk(), trainer_grace=0.3)
    async with bystander_watcher(server) as watcher, RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat(), "one")
        await trainer.chat()
        await trainer.stream.cut()
        await watcher.send(subscribe("s", "r"))
        ended = await kinds_until(watcher, "s", "ended")
        assert ended[-1].event.ended.outcome.status == FAILED
        stream = await trainer.attach()
        outcome = await trainer.settled()
        assert (outcome.status, outcome.HasField("reward")) == (FAILED, False)
        failure = outcome.failure
        assert (failure.boundary, failure.retryable) == (outcome_pb2.FAILURE_BOUNDARY_TRAINER, True)
        assert outcome.samples[0].prefix_chat == 1
        await trainer.barrier()
        assert stream.count("chat") == 0
        await trainer.start("afterwards")
        assert (await trainer.finish()).status == COMPLETED


async def test_a_trainer_that_comes_within_the_grace_period_finds_everything(serve):
    server = await serve(Talk(), trainer_grace=1.0)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.stream.cut()
        await trainer.attach()
        assert len(server.attachments.attached) == 1
        assert (await trainer.finish()).status == COMPLETED


async def test_an_outcome_whose_trainer_never_comes_expires(serve):
    server = await serve(Talk(), trainer_grace=0.05, record_ttl=0.2, sweep_interval=0.05)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        await trainer.outcome()
        await trainer.stream.cut()
        await until(lambda: server.engine.capacity().expired, timeout=1.5)
    assert server.engine.capacity().undelivered == 0


async def test_a_trainer_may_leave_in_good_order(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        await stream.leave()
        assert await stream.ended() == "OK"
        await trainer.attach()
        assert await trainer.chat() == chat
        assert (await answered(trainer, chat)).status == COMPLETED


async def answered(trainer: RawTrainer, chat: Any) -> Any:
    await trainer.answer(chat)
    return await trainer.settled()


async def test_an_attachment_without_work_is_dropped(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.finish()
        await trainer.barrier()
        await trainer.stream.cut()
        async with RawTrainer(server.address) as other:
            await other.attach()
            await other.barrier()
            assert server.attachments.get(trainer.attachment_id) is None
            assert server.attachments.get(other.attachment_id) is not None
