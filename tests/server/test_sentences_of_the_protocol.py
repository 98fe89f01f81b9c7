"""Sentences of the protocol on which a trainer with its own stubs relies, over an attachment and over callbacks."""

import asyncio
from typing import Any

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
)
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.wire.message import message_to_wire
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init
from tests.server.attached import Talk, plays, texts, user
from tests.server.test_raw_stubs import raw_trainer

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


async def team(ctx):
    """A planner, a solver that it calls, and a judge."""
    ctx.add_sample("main", policy="planner", train=True)
    plan = await ctx.chat([user("plan")])
    ctx.add_sample("solve", policy="solver", parent=("main", plan.chat_number))
    first = await ctx.chat([user("solve")], sample="solve")
    await ctx.chat([user("solve"), first.message, user("check")], sample="solve")
    ctx.add_sample("judge", policy="judge", parent=("solve", 2), train=False)
    await ctx.chat([user("judge")], sample="judge")
    ctx.set_reward(1.0)
    ctx.set_reward(0.0, sample="solve")
    ctx.set_reward(0.5, sample="solve", name="format")
    ctx.set_reward(0.25, sample="solve", chat=2)
    ctx.set_reward(2.0, sample="solve", chat=1, name="short")
    return ctx.complete([user("plan"), plan.message], reward=0.125)


def check(chats, outcome):
    """The chats name their policies; the outcome has everything that was set, and nothing else."""
    asked = [(chat.sample, chat.chat_number, chat.policy) for chat in chats]
    assert asked == [("main", 1, "planner"), ("solve", 1, "solver"), ("solve", 2, "solver"), ("judge", 1, "judge")]
    assert outcome.reward == 0.125
    main, solve, judge = outcome.samples
    assert [sample.name for sample in outcome.samples] == ["main", "solve", "judge"]
    assert (main.reward, solve.reward, judge.HasField("reward")) == (1.0, 0.0, False)
    assert solve.HasField("reward"), "0.0 is a reward"
    assert (dict(solve.reward_components), dict(main.reward_components)) == ({"format": 0.5}, {})
    first, second = solve.chat_rewards
    assert (first.chat_number, first.HasField("reward"), dict(first.reward_components)) == (1, False, {"short": 2.0})
    assert (second.chat_number, second.reward, dict(second.reward_components)) == (2, 0.25, {})
    assert [sample.policy for sample in outcome.samples] == ["planner", "solver", "judge"]
    assert not main.HasField("parent")
    assert (solve.parent.sample, solve.parent.chat_number) == ("main", 1)
    assert (judge.parent.sample, judge.parent.chat_number) == ("solve", 2)
    assert (main.train, solve.HasField("train")) == (True, False)
    assert (judge.HasField("train"), judge.train) == (True, False)


@pytest.mark.parametrize("history", [rollout_pb2.HISTORY_FORM_DELTA, rollout_pb2.HISTORY_FORM_FULL])
async def test_over_an_attachment(serve, history):
    server = await serve(plays(team))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(history=history)
        await trainer.start("r")
        outcome = await trainer.finish()
        chats = stream.all("chat")
    check(chats, outcome)
    delta = history == rollout_pb2.HISTORY_FORM_DELTA
    assert chats[2].WhichOneof("history") == ("delta" if delta else "full")


@pytest.mark.parametrize("by_reference", [False, True])
@pytest.mark.parametrize("history", [rollout_pb2.HISTORY_FORM_DELTA, rollout_pb2.HISTORY_FORM_FULL])
async def test_over_a_callback_in_the_state_and_in_events(serve, history, by_reference):
    server = await serve(plays(team))
    async with raw_trainer() as (trainer, target), grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        callback = rollout_pb2.Callback(target=target, history=history, outcome_by_reference=by_reference)
        spec = rollout_pb2.RolloutSpec(messages=[message_to_wire(user("go"))])
        await stub.Init(rollout_pb2.InitRequest(rollout_id="r", callback=callback, spec=spec))
        async with asyncio.timeout(10):
            outcome = (await trainer.completed.get()).outcome
            seen = [
                answer.event
                async for answer in stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="r"))
                if answer.HasField("event")
            ]
        stored = (await stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="r"))).rollout.outcome
    check(trainer.chats, outcome)
    check(trainer.chats, stored)
    [ended] = [event.ended.outcome for event in seen if event.HasField("ended")]
    check(trainer.chats, ended)
    assert [event.chat_requested.policy for event in seen if event.HasField("chat_requested")] == [
        "planner",
        "solver",
        "solver",
        "judge",
    ]
    added = [event.sample_added for event in seen if event.HasField("sample_added")]
    assert [(each.sample, each.policy, each.parent.sample) for each in added] == [
        ("main", "planner", ""),
        ("solve", "solver", "main"),
        ("judge", "judge", "solve"),
    ]
    assert [each.HasField("train") for each in added] == [True, False, True]
    graded = [event.graded for event in seen if event.HasField("graded")]
    assert [(each.sample, each.chat_number, each.name, each.reward) for each in graded] == [
        ("main", 0, "", 1.0),
        ("solve", 0, "", 0.0),
        ("solve", 0, "format", 0.5),
        ("solve", 2, "", 0.25),
        ("solve", 1, "short", 2.0),
    ]
