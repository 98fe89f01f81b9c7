"""An attachment as a raw trainer sees it: breaks, streams that take over, what is sent again."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.server import attachment as server_attachment
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import recorded
from tests.server.attached import Talk, Wide, asked, bystander_watcher, key, plays

COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED


async def test_what_is_unanswered_comes_again_on_the_next_stream(serve):
    server = await serve(Talk(), Wide())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("over")
        await trainer.answer(await trainer.chat())
        before = await trainer.outcome()
        await trainer.start("wide", agent_loop="wide", turns=3)
        chats = [await trainer.chat() for _ in range(3)]
        await trainer.answer(chats[1])
        for _ in range(3):
            await trainer.stream.cut()
            stream = await trainer.attach()
            await trainer.barrier()
            assert [key(chat) for chat in stream.all("chat")] == [key(chats[0]), key(chats[2])], "each once, in order"
            assert stream.all("chat") == [chats[0], chats[2]]
            assert [c.outcome for c in stream.all("complete")] == [before]
        assert (await trainer.settled()).result_id == before.result_id
        assert (await trainer.finish()).rollout_id == "wide"
        await trainer.stream.cut()
        stream = await trainer.attach()
        await trainer.barrier()
        assert (stream.count("chat"), stream.count("complete")) == (0, 0)


async def test_an_agent_goes_on_between_two_streams(serve):
    gate = asyncio.Event()

    async def run(ctx):
        await gate.wait()
        return ctx.complete([(await ctx.chat(ctx.request.messages)).message])

    server = await serve(plays(run))
    async with bystander_watcher(server) as watcher, RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.stream.cut()
        gate.set()
        await asked(watcher, "r", 1)
        stream = await trainer.attach()
        assert (await trainer.finish()).status == COMPLETED
        assert stream.count("chat") == 1


async def test_a_silent_chat_is_asked_again_on_the_same_stream(serve, monkeypatch):
    monkeypatch.setattr(server_attachment, "RESEND_INTERVAL", 0.05)
    server = await serve(Talk(), chat_silence=0.1)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        assert await trainer.chat() == chat
        await trainer.answer(chat)
        outcome = await trainer.outcome()
        assert await trainer.outcome() == outcome
        await trainer.send(recorded(outcome))


@asynccontextmanager
async def two_streams(server, first, second):
    """A trainer with a stream, and a second stream of the same attachment; each has this stream number."""
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        other.attachment_id = trainer.attachment_id
        await trainer.attach(stream_number=first)
        await trainer.start("r")
        await trainer.chat()
        await other.open().send(other.hello(stream_number=second))
        yield trainer, other


async def test_a_stream_that_was_opened_earlier_and_arrives_late_leaves_the_newer_one(serve):
    async with two_streams(await serve(Talk()), 5 << 32, (4 << 32) + 7) as (trainer, late):
        assert await late.stream.ended() == "ABORTED"
        assert late.stream.count("hello") == 0
        await trainer.barrier()
        await trainer.answer(trainer.stream.all("chat")[0])
        assert (await trainer.finish()).status == COMPLETED
        assert trainer.stream.over is None


@pytest.mark.parametrize(("first", "second"), [(5, 6), (5, 5), (5, 0), (0, 5), (0, 0)])
async def test_a_stream_that_is_newer_or_has_no_number_replaces_the_other(serve, first, second):
    async with two_streams(await serve(Talk()), first, second) as (trainer, newer):
        assert await trainer.stream.ended() == "ABORTED"
        assert (await newer.finish()).status == COMPLETED


async def test_a_lower_number_is_no_obstacle_once_the_newer_stream_has_ended(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach(stream_number=5)
        await trainer.start("r")
        await trainer.chat()
        await trainer.stream.cut()
        await trainer.attach(stream_number=4)
        assert (await trainer.finish()).status == COMPLETED
