"""Sentences of the protocol on which a trainer with its own stubs relies, over an attachment and over callbacks."""

import asyncio
from typing import Any

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    message_pb2,
    outcome_pb2,
)
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.types import ChatPurpose
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, chat_reply, init, recorded, reply, subscribe
from tests.server.attached import Talk, bystander_watcher, kinds_until, plays, texts, user
from tests.server.test_raw_stubs import init_request, raw_trainer

COMPLETED, FAILED = outcome_pb2.OUTCOME_STATUS_COMPLETED, outcome_pb2.OUTCOME_STATUS_FAILED
CANCELLED = outcome_pb2.OUTCOME_STATUS_CANCELLED
TRAINER = outcome_pb2.FAILURE_BOUNDARY_TRAINER


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


async def test_over_a_callback_every_chat_has_its_tools(serve):
    server = await serve()
    async with raw_trainer() as (trainer, target), grpc.aio.insecure_channel(server.address) as channel:
        await RolloutServiceStub(channel).Init(init_request("r", target))
        await asyncio.wait_for(trainer.completed.get(), 10)
        for chat in trainer.chats:
            assert [tool.function.name for tool in chat.tools.tools] == ["add", "subtract", "multiply", "divide"]


def response(**fields: Any) -> dict[str, Any]:
    message = {"message": message_pb2.Message(role="assistant", text="fine")}
    return {"response": chat_pb2.ChatResponse(**(message | fields))}


ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"status": error_pb2.Status(code=7)}, "CHAT_REFUSED"),
    "away for longer than the grace period": ({"status": error_pb2.Status(code=14)}, "TRAINER_UNREACHABLE"),
    "no message": ({"response": chat_pb2.ChatResponse()}, "REPLY_UNREADABLE"),
    "another role": (response(message=message_pb2.Message(role="user", text="fine")), "REPLY_UNREADABLE"),
    "a prefix of no chat": (response(tokens={"ids": [2]}, prompt={"ids": [1]}, prompt_prefix=1), "REPLY_UNREADABLE"),
    "versions that do not add up": (
        response(tokens={"ids": [1, 2, 3]}, versions=[{"version": "a", "tokens": 1}, {"version": "b", "tokens": 1}]),
        "REPLY_UNREADABLE",
    ),
}


@pytest.mark.parametrize("what", ENDS)
async def test_each_end_of_a_chat_without_a_reply_has_its_reason(serve, what):
    answer, reason = ENDS[what]
    server = await serve(Talk(), trainer_grace=0.3)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        while stream.count("complete") == 0:
            await stream.until(lambda: stream.fresh("chat") or stream.count("complete"))
            if stream.fresh("chat"):
                await trainer.send(chat_reply(await trainer.chat(), **answer))
        outcome = await trainer.settled()
        assert (outcome.status, outcome.failure.boundary, outcome.failure.reason) == (FAILED, TRAINER, reason)


@pytest.mark.parametrize(("prefix", "segments"), [(0, [[1, 2]]), (2, [[1, 2]]), (3, None)])
async def test_a_prompt_prefix_is_at_most_the_tokens_of_the_continued_chat(serve, prefix, segments):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat())  # its prompt has one token, and so has its reply
        prompt = [1, 1001, 2][prefix:]
        tokens = {"ids": [1002], "logprobs": [-0.5]}
        second = response(tokens=tokens, prompt={"ids": prompt}, prompt_prefix=prefix)
        await trainer.send(chat_reply(await trainer.chat(), **second))
        outcome = await trainer.settled()
        if segments is None:
            assert outcome.failure.reason == "REPLY_UNREADABLE"
        else:
            assert chats_of(outcome.samples[0]) == segments


WITHOUT_ALL_LOGPROBS: dict[str, dict[str, Any]] = {
    "no tokens": {},
    "NaN": {"tokens": {"ids": [1, 2], "logprobs": [-0.5, float("nan")]}, "prompt": {"ids": [1]}},
    "no prompt": {"tokens": {"ids": [1, 2], "logprobs": [-0.5, -0.5]}},
}


@pytest.mark.parametrize("what", WITHOUT_ALL_LOGPROBS)
async def test_an_untrainable_sample_has_no_segments(serve, what):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.send(chat_reply(await trainer.chat(), **response(**WITHOUT_ALL_LOGPROBS[what])))
        (sample,) = (await trainer.settled()).samples
        assert (sample.trainable, len(sample.segments)) == (False, 0)
        assert sample.not_trainable_reason


async def test_a_judges_chats_are_in_no_segment_and_make_no_sample(serve):
    async def run(ctx):
        messages = list(ctx.request.messages)
        await ctx.chat(messages, purpose=ChatPurpose.JUDGE)
        messages.append((await ctx.chat(messages)).message)
        await ctx.chat([user("Was it good?")], sample="judge", purpose=ChatPurpose.JUDGE)
        return ctx.complete(messages)

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        for _ in range(3):
            chat = await trainer.chat()
            if chat.purpose == chat_pb2.CHAT_PURPOSE_JUDGE:
                await trainer.send(chat_reply(chat, response=reply("no tokens")))
            else:
                await trainer.answer(chat)
        (sample,) = (await trainer.settled()).samples
        assert (sample.name, sample.trainable, chats_of(sample)) == ("main", True, [[2]])


async def test_inits_need_not_wait_for_the_answer_to_open_rollouts(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        refs = [attach_pb2.RolloutRef(rollout_id="gone", attempt=1)]
        listed = attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=refs))
        await trainer.send(listed, init("r"))
        assert list((await stream.next("unknown_rollouts")).rollouts) == refs
        assert (await trainer.finish()).rollout_id == "r"


async def test_after_an_error_the_same_attachment_attaches_again(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        asked = await trainer.chat()
        await stream.send_bytes(b"\xff")
        assert await stream.ended() == "INVALID_ARGUMENT"
        await trainer.attach()
        assert await trainer.chat() == asked
        await trainer.answer(asked)
        assert (await trainer.settled()).status == COMPLETED


async def test_a_slot_is_free_when_the_outcome_arrives(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        assert stream.all("hello")[0].max_open_rollouts == 1
        for name in ("one", "two", "three"):
            await trainer.start(name)
            await trainer.answer(await trainer.chat())
            assert (await trainer.outcome()).rollout_id == name, "it is not answered"


async def test_goodbye_ends_rollouts_at_once_and_keeps_outcomes(serve):
    server = await serve(Talk())
    async with bystander_watcher(server) as watcher, RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("done")
        await trainer.answer(await trainer.chat())
        undelivered = await trainer.outcome()
        await trainer.start("live")
        await trainer.chat()
        await trainer.send(attach_pb2.TrainerFrame(goodbye=attach_pb2.Goodbye()))
        assert await stream.ended() == "OK", stream.details
        await watcher.send(subscribe("s", "live"))
        ended = (await kinds_until(watcher, "s", "ended"))[-1].event.ended.outcome
        assert (ended.status, ended.failure.boundary, ended.failure.reason) == (FAILED, TRAINER, "TRAINER_LOST")
        await trainer.attach()
        outcomes = [await trainer.settled() for _ in range(2)]
        assert {outcome.rollout_id for outcome in outcomes} == {"done", "live"}
        assert undelivered in outcomes


async def test_messages_above_the_default_of_grpc_are_accepted(serve):
    large = "x" * (5 * 2**20)
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", messages=[message_pb2.Message(role="user", text=large)])
        chat = await trainer.chat()
        assert len(chat.full.messages[-1].text) == len(large)
        await trainer.answer(chat, large)
        assert (await trainer.settled()).status == COMPLETED


async def test_a_chat_has_the_parameters_of_the_agent_and_no_others(serve):
    async def run(ctx):
        await ctx.chat(ctx.request.messages)
        await ctx.chat(ctx.request.messages, **(ctx.request.completion_params | {"top_p": 0.5}))
        return ctx.complete([])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", sampling=message_pb2.SamplingParams(temperature=0.25))
        without = await trainer.chat()
        await trainer.answer(without)
        own = await trainer.chat()
        assert without.sampling == message_pb2.SamplingParams()
        assert own.sampling == message_pb2.SamplingParams(temperature=0.25, top_p=0.5)


async def test_content_finish_reason_and_usage_may_be_absent(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        bare = chat_pb2.ChatResponse(message=message_pb2.Message(role="assistant"))
        await trainer.send(chat_reply(await trainer.chat(), response=bare))
        assert (await trainer.settled()).status == COMPLETED


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


async def test_any_attachment_of_the_owner_takes_over_with_an_equal_init(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as first, RawTrainer(server.address) as second:
        await first.attach()
        await first.start("r")
        outcome = await first.finish()
        await second.attach()
        answer = await second.start("r")
        again = await second.outcome()
        assert (answer.created, again.result_id) == (False, outcome.result_id)
        await second.send(recorded(again))
        await first.barrier()
        assert first.stream.count("complete") == 1
