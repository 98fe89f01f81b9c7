"""An attachment as a raw trainer sees it: which frames go out together, and in which order."""

import asyncio
from itertools import pairwise

from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import subscribe, window
from tests.server.attached import Talk, Wide, asked, plays, user

MIB = 1024 * 1024


async def test_what_waits_goes_out_together_within_the_limits(serve):
    size = 3000

    async def run(ctx):
        asks = [user("x" * size)]
        await asyncio.gather(*(ctx.chat(asks, sample=f"s{n}") for n in range(1000)))
        return ctx.complete([])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("r")
        await asked(trainer, "r", 1000)
        before = len(stream.messages)
        await trainer.send(window(1000))
        await stream.until(lambda: stream.count("chat") == 1000)
        batches = stream.messages[before:]
        assert len(batches) <= 8, "3 MB in messages of 1 MiB, and perhaps a few that found little to take"
        assert all(size <= MIB for _, size in batches)
        await stream.cut()


async def test_a_frame_above_the_limit_goes_alone(serve):
    text = "x" * (MIB + 10)

    async def run(ctx):
        return ctx.complete([(await ctx.chat([user(text)])).message])

    server = await serve(plays(run), Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("wide", agent_loop="wide", turns=2)
        await trainer.start("large", agent_loop="talk")
        await trainer.start("small", agent_loop="wide", turns=3)
        await asked(trainer, "small", 3)
        before = len(stream.messages)
        await trainer.send(window(6))
        await stream.until(lambda: stream.count("chat") == 6)
        batches = stream.messages[before:]
        assert [frames for frames, size in batches if size > MIB] == [1]
        assert [chat.rollout_id for chat in stream.all("chat")] == ["wide", "wide", "large", "small", "small", "small"]


async def test_chats_go_before_events(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("long", turns=100)
        await trainer.finish()
        await trainer.send(window(0))
        await trainer.start("next", turns=1)
        await asked(trainer, "next", 1)
        listed = len(stream.frames)
        await trainer.send(*(subscribe(f"s{n}", "long") for n in range(20)), window(1))
        await stream.until(lambda: stream.count("unsubscribed") == 20)
        order = [frame.WhichOneof("frame") for frame in stream.frames[listed:]]
        events = [place for place, kind in enumerate(order) if kind == "event"]
        assert order.index("chat") < events[len(events) // 2]
        for name in ("s0", "s19"):
            received = [e.response.event.event_number for e in stream.all("event") if e.id == name]
            assert all(b == a + 1 for a, b in pairwise(received))
            assert received[0] == 1
