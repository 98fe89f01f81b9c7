"""An attachment as a raw trainer sees it: how many chats and rollouts may be open, and the server's drain."""

import grpc

from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init
from tests.server.attached import Talk, Wide, asked


async def test_a_hello_without_a_window_allows_1024_chats(serve):
    server = await serve(Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=None)
        await trainer.start("r", agent_loop="wide", turns=1030)
        await asked(trainer, "r", 1030)
        assert stream.count("chat") == 1024


async def test_a_cancelled_rollouts_chat_counts_until_it_is_answered(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=1)
        await trainer.start("one")
        chat = await trainer.chat()
        await trainer.send(cancel("c", rollout_id="one"))
        await trainer.settled()
        await trainer.start("two")
        await asked(trainer, "two", 1)
        assert stream.count("chat") == 1
        await trainer.answer(chat)
        assert (await trainer.chat()).rollout_id == "two"


async def test_the_servers_window_is_shared_evenly(serve):
    server = await serve(Talk(), max_concurrent=8, max_queued=4)
    async with (
        RawTrainer(server.address) as one,
        RawTrainer(server.address) as two,
        RawTrainer(server.address) as three,
    ):
        assert (await one.attach()).all("hello")[0].max_open_rollouts == 12
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 6
        assert (await one.stream.next("window")).max_open_rollouts == 6
        assert (await three.attach()).all("hello")[0].max_open_rollouts == 4
        for trainer in (one, two):
            assert (await trainer.stream.next("window")).max_open_rollouts == 4
        replaced = two.stream
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 4, "a stream that replaces one adds none"
        assert await replaced.ended() == "ABORTED"
        await three.stream.cut()
        for trainer in (one, two):
            assert (await trainer.stream.next("window")).max_open_rollouts == 6
        await two.stream.cut()
        assert (await one.stream.next("window")).max_open_rollouts == 12
        await one.barrier()
        assert one.stream.fresh("window") == 0
        await server.drain()
        assert (await one.stream.next("window")).max_open_rollouts == 0
        await one.stream.next("draining")


async def test_everybody_gets_at_least_one(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0)
    async with RawTrainer(server.address) as one, RawTrainer(server.address) as two:
        await one.attach()
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 1
        await one.start("r")
        await two.send(init("s"))
        refused = await two.stream.next("init_reply")
        assert refused.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "there is but one slot"
        await one.finish()
        await two.start("s")


async def test_a_server_that_stops_says_so_last(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await server.stop(0.0)
        assert await stream.ended() == "UNAVAILABLE"
        assert (stream.count("draining"), stream.count("goodbye")) == (1, 1)
        assert stream.frames[-1].WhichOneof("frame") == "goodbye"
