"""Sentences of the protocol on which a trainer with its own stubs relies, over an attachment and over callbacks."""

import asyncio
from typing import Any

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, control_pb2, message_pb2, outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init
from tests.server.attached import Talk, plays, texts, user

COMPLETED, FAILED = outcome_pb2.OUTCOME_STATUS_COMPLETED, outcome_pb2.OUTCOME_STATUS_FAILED
CANCELLED = outcome_pb2.OUTCOME_STATUS_CANCELLED


def chats_of(sample: Any) -> list[list[int]]:
    return [list(segment.chats) for segment in sample.segments]


def sampled(sample: Any) -> int:
    return sum(sum(segment.mask_runs[1::2]) for segment in sample.segments)


@pytest.mark.parametrize("order", ["left first", "right first"])
async def test_the_lower_of_two_open_chats_grows_the_segment_of_the_chat_that_both_continue(serve, order):
    async def run(ctx):
        start = list(ctx.request.messages)
        start.append((await ctx.chat(start)).message)
        await asyncio.gather(ctx.chat([*start, user("left")]), ctx.chat([*start, user("right")]))
        return ctx.complete(start)

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        left, right = await trainer.chat(), await trainer.chat()
        assert [(chat.chat_number, texts(chat.delta.messages)) for chat in (left, right)] == [
            (2, ["left"]),
            (3, ["right"]),
        ]
        for chat in (left, right) if order == "left first" else (right, left):
            await trainer.answer(chat)
        (sample,) = (await trainer.settled()).samples
        assert chats_of(sample) == [[1, 2], [3]]


async def test_a_reply_that_did_not_reach_the_agent_is_in_no_segment(serve):
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def run(ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        unwanted = asyncio.ensure_future(ctx.chat([*messages, user("never mind")]))
        await asked.wait()
        unwanted.cancel()
        await asyncio.wait({unwanted})
        given_up.set()
        messages.append((await ctx.chat([*messages, user("and now?")])).message)
        return ctx.complete(messages)

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        unwanted = await trainer.chat()
        asked.set()
        await given_up.wait()
        await trainer.answer(unwanted)
        await trainer.answer(await trainer.chat())
        (sample,) = (await trainer.settled()).samples
        assert (chats_of(sample), sampled(sample)) == ([[1, 3]], 2), "three replies were sampled"


async def test_a_chat_may_come_before_the_answer_to_its_init(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.chat()
        await trainer.stream.cut()
        stream = await trainer.attach()
        await trainer.send(init("r"))
        await stream.next("init_reply")
        kinds = [frame.WhichOneof("frame") for frame in stream.frames]
        assert kinds.index("chat") < kinds.index("init_reply")
        assert (await trainer.finish()).status == COMPLETED


def response(**fields: Any) -> dict[str, Any]:
    message = {"message": message_pb2.Message(role="assistant", text="fine")}
    return {"response": chat_pb2.ChatResponse(**(message | fields))}


async def test_inits_need_not_wait_for_the_answer_to_open_rollouts(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        refs = [attach_pb2.RolloutRef(rollout_id="gone", attempt=1)]
        listed = attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=refs))
        await trainer.send(listed, init("r"))
        assert list((await stream.next("unknown_rollouts")).rollouts) == refs
        assert (await trainer.finish()).rollout_id == "r"


async def test_a_slot_is_free_when_the_outcome_arrives(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        assert stream.all("hello")[0].max_open_rollouts == 1
        for name in ("one", "two", "three"):
            await trainer.start(name)
            await trainer.answer(await trainer.chat())
            assert (await trainer.outcome()).rollout_id == name, "it is not answered"


async def test_without_authentication_all_cancels_the_rollouts_of_every_caller(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        for name, one in (("mine", trainer), ("theirs", other)):
            await one.attach()
            await one.start(name)
        await trainer.send(cancel("c", all=control_pb2.AllRollouts()))
        rows = (await trainer.stream.next("cancel_reply")).response.results
        assert {row.rollout_id for row in rows} == {"mine", "theirs"}
        assert (await trainer.settled()).status == (await other.settled()).status == CANCELLED
