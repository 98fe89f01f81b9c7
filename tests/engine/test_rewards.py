"""Rewards of samples, of chats and of the rollout, and their named components."""

import math

import numpy as np
import pytest

from osmosis_grpc.agent.reward_decorator import BadRewardError
from osmosis_grpc.engine.run_samples import MAX_COMPONENTS, Rewards
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.protocol.types import ChatPurpose, ChatReward, OutcomeStatus, Sample, events


def user(text):
    return {"role": "user", "content": text}


async def test_one_sample_and_its_rollout_have_the_same_reward(hosting):
    async def agent(ctx):
        messages = [user("a")]
        messages.append((await ctx.chat(messages)).message)
        ctx.set_reward(np.float32(0.5))
        ctx.set_reward(1, name="format")
        return ctx.complete(messages)

    async with hosting(agent) as h:
        outcome = await h.run()
    sample = outcome.samples["main"]
    assert (outcome.reward, sample.reward) == (0.5, 0.5)
    assert type(outcome.reward) is float
    assert outcome.reward_components == sample.reward_components == {"format": 1.0}
    assert sample.chat_rewards == ()


async def test_the_reward_of_complete_is_the_samples_and_it_is_set_last(hosting):
    async def agent(ctx):
        await ctx.chat([user("a")])
        ctx.set_reward(0.25)
        ctx.set_reward(0.125, sample="")
        ctx.set_reward(7.0, sample="", name="whole")
        return ctx.complete([], reward=1.0)

    async with hosting(agent) as h:
        outcome = await h.run()
    assert (outcome.reward, outcome.samples["main"].reward) == (1.0, 1.0)
    assert outcome.reward_components == outcome.samples["main"].reward_components == {"whole": 7.0}


@pytest.mark.parametrize("order", [["", "main"], ["main", ""]])
async def test_of_the_rollout_and_its_single_sample_the_newest_reward_counts(hosting, order):
    async def agent(ctx):
        await ctx.chat([user("a")])
        for number, sample in enumerate(order):
            ctx.set_reward(float(number), sample=sample)
            ctx.set_reward(float(number), sample=sample, name="part")
        return ctx.complete([])

    async with hosting(agent) as h:
        outcome = await h.run()
    assert (outcome.reward, outcome.samples["main"].reward) == (1.0, 1.0)
    assert outcome.reward_components == outcome.samples["main"].reward_components == {"part": 1.0}


async def test_several_samples_have_rewards_of_their_own(hosting):
    async def agent(ctx):
        for name in ("for", "against", "judge"):
            await ctx.chat([user(name)], sample=ctx.add_sample(name))
        ctx.set_reward(1.0, sample="for")
        ctx.set_reward(-1.0, sample="against")
        ctx.set_reward(0.5, sample="against", name="format")
        ctx.set_reward(3.0, sample="", name="length")
        return ctx.complete([])

    async with hosting(agent) as h:
        outcome = await h.run()
    assert outcome.reward is None
    assert outcome.reward_components == {"length": 3.0}
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {
        "for": 1.0,
        "against": -1.0,
        "judge": None,
    }
    assert outcome.samples["against"].reward_components == {"format": 0.5}
    assert outcome.mean_reward == 0.0


async def test_the_reward_of_complete_is_only_the_rollouts_when_there_are_several_samples(hosting):
    async def agent(ctx):
        for name in ("one", "two"):
            await ctx.chat([user(name)], sample=ctx.add_sample(name))
        ctx.set_reward(0.0, sample="two")
        return ctx.complete([], reward=0.75)

    async with hosting(agent) as h:
        outcome = await h.run()
    assert outcome.reward == outcome.mean_reward == 0.75
    assert [sample.reward for sample in outcome.samples.values()] == [None, 0.0]


async def test_chats_have_rewards_in_the_order_of_their_numbers(hosting):
    async def agent(ctx):
        messages = []
        for text in ("a", "b", "c"):
            messages.append(user(text))
            reply = await ctx.chat(messages)
            messages.append(reply.message)
        assert reply.chat_number == 3
        ctx.set_reward(0.3, chat=reply.chat_number)
        ctx.set_reward(0.1, chat=1)
        ctx.set_reward(1.0, chat=1, name="short")
        ctx.set_reward(0.0, chat=2, name="short")
        ctx.set_reward(0.4, chat=3)
        return ctx.complete(messages, reward=1.0)

    async with hosting(agent) as h:
        outcome = await h.run()
    assert outcome.samples["main"].chat_rewards == (
        ChatReward(chat_number=1, reward=0.1, reward_components={"short": 1.0}),
        ChatReward(chat_number=2, reward_components={"short": 0.0}),
        ChatReward(chat_number=3, reward=0.4),
    )
    assert outcome.samples["main"].reward == 1.0


async def test_each_call_is_an_event(hosting):
    async def agent(ctx):
        await ctx.chat([user("a")])
        ctx.set_reward(0.5)
        ctx.set_reward(0.25)
        ctx.set_reward(1.0, chat=1, name="short")
        ctx.set_reward(2.0, sample="")
        return ctx.complete([])

    async with hosting(agent) as h:
        record = await h.start()
        await h.settled(record)
        h.check_whole(record)
        assert h.kinds(record, events.Graded) == [
            events.Graded("main", 0.5),
            events.Graded("main", 0.25),
            events.Graded("main", 1.0, 1, "short"),
            events.Graded("", 2.0),
        ]


async def test_a_rollout_that_fails_has_no_rewards(hosting):
    async def agent(ctx):
        await ctx.chat([user("a")])
        ctx.set_reward(0.5)
        ctx.set_reward(0.5, name="part")
        ctx.set_reward(0.5, chat=1)
        if ctx.request.label == "error":
            return ctx.error("no")
        raise RuntimeError("no")

    async with hosting(agent) as h:
        for label in ("error", "raise"):
            outcome = await h.run(label, label=label)
            assert outcome.status is OutcomeStatus.FAILED
            assert (outcome.reward, outcome.reward_components, outcome.mean_reward) == (None, {}, None)
            sample = outcome.samples["main"]
            assert (sample.reward, sample.reward_components, sample.chat_rewards) == (None, {}, ())


WRONG = [
    ({"value": math.nan}, "not a finite number"),
    ({"value": math.inf}, "not a finite number"),
    ({"value": [1.0]}, "not a finite number"),
    ({"value": "1"}, "not a finite number"),
    ({"value": None}, "not a finite number"),
    ({"sample": "other"}, "sample: the rollout has no sample named 'other'; its samples: 'main', 'side'"),
    ({"sample": None}, "sample: the rollout has no sample named None"),
    ({"sample": []}, "sample: the rollout has no sample named"),
    ({"chat": 9}, "chat: chat 9 of sample 'main' does not exist"),
    ({"chat": 1, "sample": "side"}, "chat: chat 1 of sample 'side' does not exist"),
    ({"chat": 2}, "chat: chat 2 of sample 'main' has no reply"),
    ({"chat": -1}, "chat: -1 is not the number of a chat"),
    ({"chat": True}, "chat: True is not the number of a chat"),
    ({"chat": 1.0}, "chat: 1.0 is not the number of a chat"),
    ({"chat": "1"}, "chat: '1' is not the number of a chat"),
    ({"chat": 1, "sample": ""}, "chat: 1 needs a sample"),
    ({"name": "x" * 65}, "name: has 65 characters, more than 64"),
    ({"name": "a\nb"}, "name: 'a\\\\nb' has a character that cannot be printed"),
    ({"name": None}, "name: is a NoneType, not a str"),
    ({"name": 0}, "name: is a int, not a str"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[str(arguments) for arguments, _ in WRONG])
async def test_a_wrong_reward_is_a_value_error_and_changes_nothing(hosting, arguments, message):
    """The first chat is answered, the second one fails, and sample `side` has no chat."""

    async def agent(ctx):
        await ctx.chat([user("a")])
        ctx.add_sample("side")
        with pytest.raises(RuntimeError):
            await ctx.chat([user("b")])
        with pytest.raises(ValueError, match=message) as refused:
            ctx.set_reward(**({"value": 0.5} | arguments))
        assert isinstance(refused.value, BadRewardError) is ("value" in arguments)
        return ctx.complete([], reward=1.0)

    async with hosting(agent) as h:

        async def policy(request):
            if request.messages[-1]["content"] == "b":
                raise RuntimeError("no")
            return await usual(request)

        usual, h.trainer.policy = h.trainer.policy, policy
        record = await h.start()
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        assert outcome.reward == 1.0
        assert outcome.samples["main"].chat_rewards == ()
        assert h.kinds(record, events.Graded) == []


async def test_a_chat_that_is_open_has_no_reward_yet_and_a_judged_one_has(hosting):
    async def agent(ctx):
        judged = await ctx.chat([user("judge")], purpose=ChatPurpose.JUDGE)
        ctx.set_reward(0.5, chat=judged.chat_number)
        return ctx.complete([])

    async with hosting(agent) as h:
        outcome = await h.run()
    assert outcome.samples == {}
    assert outcome.reward is None


async def test_without_a_sample_the_error_says_so_and_the_rollout_can_have_a_reward(hosting):
    async def agent(ctx):
        with pytest.raises(ValueError, match="its samples: none yet"):
            ctx.set_reward(1.0)
        ctx.set_reward(1.0, sample="")
        return ctx.complete([])

    async with hosting(agent) as h:
        outcome = await h.run()
    assert (outcome.status, outcome.reward, outcome.samples) == (OutcomeStatus.COMPLETED, 1.0, {})


async def test_after_the_end_no_reward_is_set(hosting):
    kept = []

    async def agent(ctx):
        kept.append(ctx)
        await ctx.chat([user("a")])
        return ctx.complete([])

    async with hosting(agent) as h:
        await h.run()
        for value in (1.0, math.nan):
            with pytest.raises(RolloutEndedError):
                kept[0].set_reward(value)


def test_components_are_bounded_for_each_sample_and_chat():
    rewards = Rewards()
    for sample, chat in (("main", 0), ("main", 1), ("other", 0), ("", 0)):
        for number in range(MAX_COMPONENTS):
            rewards.set(float(number), sample, chat, f"part {number}")
            rewards.set(float(number), sample, chat, f"part {number}")  # again, under the same name
        with pytest.raises(ValueError, match="at most 64 components"):
            rewards.set(0.0, sample, chat, "one more")
        rewards.set(0.0, sample, chat)
    graded = rewards.grade({"main": Sample(), "other": Sample()})
    assert len(graded.components) == MAX_COMPONENTS
    assert [len(sample.reward_components) for sample in graded.samples.values()] == [MAX_COMPONENTS] * 2
    assert len(graded.samples["main"].chat_rewards[0].reward_components) == MAX_COMPONENTS


def test_the_rewards_of_a_rollout_are_bounded():
    rewards = Rewards()
    for chat in range(16_384):
        rewards.set(1.0, "main", chat)
    with pytest.raises(ValueError, match="at most 16384 rewards"):
        rewards.set(1.0, "main", 16_384)
    rewards.set(2.0, "main", 5)
