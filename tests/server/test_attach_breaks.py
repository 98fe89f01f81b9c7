"""An attachment as a raw trainer sees it: breaks, streams that take over, what is sent again."""

import asyncio

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
