"""Rewards and samples as trainers see them that use the generated stubs only."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.wire.message import message_to_wire
from osmosis_grpc.testing.raw import RawTrainer
from tests.server.attached import plays, user
from tests.server.test_raw_stubs import raw_trainer


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
