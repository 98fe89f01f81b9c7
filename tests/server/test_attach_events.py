"""An attachment as a raw trainer sees it: subscriptions to events."""

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import subscribe
from tests.server.attached import Talk, kinds_until, numbers


async def test_events_come_in_order_without_their_tokens_unless_asked(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.send(subscribe("plain", "r"), subscribe("tokens", "r", tokens=True))
        await trainer.finish()
        for _ in range(2):
            over = await stream.next("unsubscribed")
            assert not over.HasField("status"), "nothing more can happen"
        plain = await kinds_until(trainer, "plain", "delivered")
        full = await kinds_until(trainer, "tokens", "delivered")
        assert numbers(plain) == numbers(full) == list(range(1, len(plain) + 1))

        def blocks(answers):
            replies = [a.event.chat_answered for a in answers if a.event.WhichOneof("kind") == "chat_answered"]
            return [list(r.response.tokens.ids) for r in replies]

        assert blocks(plain) == [[], []]
        assert blocks(full) == [[1001], [1002]]
        await trainer.send(subscribe("later", "r", after_event=4))
        assert numbers(await kinds_until(trainer, "later", "delivered")) == numbers(plain)[4:]


async def test_a_subscription_of_the_same_name_replaces_the_first(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        for name in ("one", "two"):
            await trainer.start(name)
        await trainer.send(subscribe("s", "one"))
        await trainer.stream.until(lambda: stream.count("event") == 4)
        await trainer.send(subscribe("s", "two"))
        await trainer.stream.until(lambda: any(e.response.event.rollout_id == "two" for e in stream.all("event")))
        before = [e.response.event.event_number for e in stream.all("event") if e.response.event.rollout_id == "one"]
        for _ in range(2):
            await trainer.finish()
        await stream.next("unsubscribed")
        await trainer.barrier()
        after = [e.response.event.event_number for e in stream.all("event") if e.response.event.rollout_id == "one"]
        assert after == before, "the first is over"
        assert numbers(await kinds_until(trainer, "s", "delivered"))[len(before) :] == list(range(1, 9))
        assert stream.count("unsubscribed") == 1


async def test_no_event_comes_after_an_unsubscribe(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        await trainer.send(subscribe("s", "r"))
        await trainer.stream.until(lambda: stream.count("event") == 4)
        await trainer.send(attach_pb2.TrainerFrame(unsubscribe={"id": "s"}))
        await trainer.finish()
        await trainer.send(subscribe("t", "r"))
        await kinds_until(trainer, "t", "delivered")
        assert sum(e.id == "s" for e in stream.all("event")) == 4


async def test_a_subscription_goes_on_after_a_break_without_gaps(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=3)
        await trainer.send(subscribe("s", "r"))
        await stream.until(lambda: stream.count("event") == 4)
        seen = [e.response for e in stream.all("event")]
        await stream.cut()
        stream = await trainer.attach()
        await trainer.answer(await trainer.chat())
        await trainer.answer(await trainer.chat())
        assert stream.count("event") == 0, "subscriptions do not outlive their stream"
        assert server.attachments.get(trainer.attachment_id).subscriptions.open == 0
        await trainer.send(subscribe("s", "r", after_event=seen[-1].event.event_number))
        await trainer.finish()
        seen += await kinds_until(trainer, "s", "delivered")
        assert numbers(seen) == list(range(1, len(seen) + 1))


async def test_all_rollouts_events_by_cursor_over_a_break(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.send(subscribe("all", ""))
        await trainer.start("a")
        await trainer.finish()
        seen = await kinds_until(trainer, "all", "delivered")
        await stream.cut()
        await trainer.attach()
        await trainer.start("b")
        await trainer.finish()
        await trainer.send(subscribe("all", "", cursor=seen[-1].cursor))
        seen += await kinds_until(trainer, "all", "delivered")
        assert [(a.event.rollout_id, a.event.event_number) for a in seen] == [(r, n) for r in "ab" for n in range(1, 9)]
