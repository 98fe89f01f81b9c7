"""An attachment as a raw trainer sees it: hellos, a whole rollout, which frames go out together, windows, the drain."""

import asyncio
from itertools import pairwise

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2, rollout_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init, subscribe, window
from tests.server.attached import Talk, Wide, asked, plays, texts, user

MIB = 1024 * 1024
COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED


async def test_the_server_says_who_it_is(serve):
    server = await serve(Talk(), Wide(), max_concurrent=5, max_queued=2)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(protocol_min=0, protocol_max=99)
        hello = stream.all("hello")[0]
        assert stream.frames[0].WhichOneof("frame") == "hello"
        assert hello.attachment_id == trainer.attachment_id
        assert (hello.protocol_min, hello.protocol_max) == (1, 1)
        assert (hello.max_open_rollouts, list(hello.agent_loops), hello.draining) == (7, ["talk", "wide"], False)
        assert hello.journal_id
        assert hello.process_id
        assert hello.limits.max_message_bytes == 64 * MIB
        await trainer.barrier()
        assert (stream.count("hello"), stream.count("window")) == (1, 0), (
            "the hello has the window, so no window frame follows"
        )


@pytest.mark.parametrize("attachment_id", ["a" * 16, "a" * 256, "ünîcödé is text as well"])
async def test_attachment_ids_of_every_size(serve, attachment_id):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(attachment_id=attachment_id)
        assert stream.all("hello")[0].attachment_id == attachment_id


async def test_a_rollout_travels_by_reference(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        answer = await trainer.start("r", turns=3)
        assert (answer.created, [tool.function.name for tool in answer.tools]) == (True, ["nod"])
        outcome = await trainer.finish()
        first, second, third = stream.all("chat")
        assert texts(first.full.messages) == ["How are you?"]
        assert (second.delta.parent_chat, texts(second.delta.messages)) == (1, ["so much for turn 1"])
        assert (third.delta.parent_chat, texts(third.delta.messages)) == (2, ["so much for turn 2"])
        assert not any(chat.HasField("tools") for chat in (first, second, third))

        (sample,) = outcome.samples
        assert (sample.name, sample.prefix_chat, texts(sample.messages)) == ("main", 3, ["so much for turn 3"])
        assert (sample.trainable, sample.not_trainable_reason) == (True, "")
        (segment,) = sample.segments
        assert (list(segment.ids), list(segment.logprobs)) == ([], [])
        assert (list(segment.chats), list(segment.mask_runs)) == ([1, 2, 3], [1, 1, 1, 1, 1, 1])
        assert (outcome.status, outcome.reward, list(outcome.omitted)) == (COMPLETED, 1.0, [])


async def test_the_message_size_does_not_grow_with_the_history(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=40)
        await trainer.finish()
        sizes = [chat.ByteSize() for chat in stream.all("chat")[1:]]
        assert max(sizes) - min(sizes) <= 2, "but for the digits of its numbers"


# Histories.


async def test_an_edited_history_goes_in_full(serve):
    async def run(ctx):
        messages = list(ctx.request.messages)
        messages += [(await ctx.chat(messages)).message, user("and?")]
        messages[0] = user("How were you?")
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete([user("something else")])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        outcome = await trainer.finish()
        assert texts(stream.all("chat")[1].full.messages) == ["How were you?", "fine", "and?"]
        (sample,) = outcome.samples
        assert (sample.prefix_chat, texts(sample.messages)) == (0, ["something else"])


async def test_an_open_chat_comes_again_in_the_form_that_the_new_stream_wants(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat())
        assert (await trainer.chat()).WhichOneof("history") == "delta"
        await trainer.stream.cut()
        await trainer.attach(history=rollout_pb2.HISTORY_FORM_FULL)
        assert (await trainer.chat()).WhichOneof("history") == "full"


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
