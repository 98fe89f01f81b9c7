"""What an agent sets arrives at the trainer, over both transports, delta and full."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import AlreadyExists, InvalidArgument
from osmosis_grpc.protocol.types import (
    ChatRef,
    ChatRequest,
    ChatReward,
    OutcomeStatus,
    RolloutOutcome,
    RolloutRequest,
    Sample,
    Segment,
    TokenBlock,
    events,
)
from osmosis_grpc.trainer import RolloutClient, SyncTrainer, Trainer, TrainerConfig, advantages, pad
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.trainer.conftest import PATIENCE, USER
from tests.trainer.deployment import within

WAYS = [(transport, delta) for transport in ("attach", "callback") for delta in (True, False)]
IDS = [f"{transport} {'delta' if delta else 'full'}" for transport, delta in WAYS]


def user(text):
    return {"role": "user", "content": text}


class Team(RolloutAgentLoop):
    """A planner that branches, a solver that it calls, and a judge whose sample is not to be trained on."""

    name = "team"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        ctx.add_sample("main", policy="planner")
        plan = [*ctx.request.messages]
        first = await ctx.chat(plan)
        plan = [*plan, first.message, user("refine")]
        second = await ctx.chat(plan)
        branch = await ctx.chat([*plan[:-1], user("another way")])
        solver = ctx.add_sample("solver", policy="solver", parent=("main", second.chat_number))
        solved = await ctx.chat([user("solve")], sample=solver)
        judge = ctx.add_sample("judge", policy="judge", parent=(solver, solved.chat_number), train=False)
        await ctx.chat([user("judge")], sample=judge)
        ctx.set_reward(0.0)
        ctx.set_reward(0.75)  # replaces the one before
        ctx.set_reward(1.0, name="format")
        ctx.set_reward(0.25, chat=branch.chat_number)
        ctx.set_reward(0.5, chat=first.chat_number)
        ctx.set_reward(2.0, chat=first.chat_number, name="length")
        ctx.set_reward(float(ctx.request.metadata.get("solved", -1)), sample=solver)
        ctx.set_reward(9.0, sample="", name="turns")
        return ctx.complete([*plan, second.message])


class Named:
    """A policy with a name, which counts what it answers."""

    def __init__(self, name):
        self.name = name
        self.asked = Counter()

    async def __call__(self, request):
        assert request.policy == self.name
        self.asked[request.rollout_id] += 1
        return answer(request, f"{self.name} {request.chat_number}")


def team():
    """The policies of the team."""
    return {name: Named(name) for name in ("planner", "solver", "judge")}


@asynccontextmanager
async def training(serve, policy, transport="attach", delta=True, agent=None, **options):
    """A trainer and its server."""
    server = await serve(agent or Team())
    config = TrainerConfig(delta=delta)
    async with Trainer([server.address], policy, transport=transport, config=config, **options) as trainer:
        yield trainer, server


def check(outcome):
    """What the team set."""
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert (outcome.reward, outcome.reward_components) == (None, {"turns": 9.0})
    main, solver, judge = outcome.samples.values()
    assert list(outcome.samples) == ["main", "solver", "judge"]
    assert (main.reward, main.reward_components) == (0.75, {"format": 1.0})
    assert main.chat_rewards == (
        ChatReward(chat_number=1, reward=0.5, reward_components={"length": 2.0}),
        ChatReward(chat_number=3, reward=0.25),
    )
    assert (solver.reward, judge.reward) == (-1.0, None)
    assert [(s.policy, s.parent, s.train) for s in outcome.samples.values()] == [
        ("planner", None, None),
        ("solver", ChatRef("main", 2), None),
        ("judge", ChatRef("solver", 1), False),
    ]


@pytest.mark.parametrize(("transport", "delta"), WAYS, ids=IDS)
async def test_what_the_agent_sets_arrives(serve, transport, delta):
    policies = team()
    async with training(serve, policies, transport, delta) as (trainer, server):
        outcome = await within(trainer.rollout(rollout_id="r1", messages=[USER]))
        seen = [event.kind async for event in trainer.events("r1")]
        async with RolloutClient(server.address) as client:
            stored = (await client.get("r1")).outcome
    check(outcome)
    check(stored)
    assert [policies[name].asked["r1"] for name in ("planner", "solver", "judge")] == [3, 1, 1]
    assert all(sample.trainable for sample in outcome.samples.values())
    assert [segment.chats for segment in outcome.samples["main"].segments] == [(1, 2), (3,)]
    assert [kind for kind in seen if isinstance(kind, events.SampleAdded)] == [
        events.SampleAdded("main", "planner"),
        events.SampleAdded("solver", "solver", ChatRef("main", 2)),
        events.SampleAdded("judge", "judge", ChatRef("solver", 1), False),
    ]
    assert [kind.policy for kind in seen if isinstance(kind, events.ChatRequested)] == [
        "planner",
        "planner",
        "planner",
        "solver",
        "judge",
    ]
    graded = [(k.sample, k.chat_number, k.name, k.reward) for k in seen if isinstance(k, events.Graded)]
    assert graded == [
        ("main", 0, "", 0.0),
        ("main", 0, "", 0.75),
        ("main", 0, "format", 1.0),
        ("main", 3, "", 0.25),
        ("main", 1, "", 0.5),
        ("main", 1, "length", 2.0),
        ("solver", 0, "", -1.0),
        ("", 0, "turns", 9.0),
    ]


@pytest.mark.parametrize(("transport", "delta"), WAYS, ids=IDS)
async def test_a_ledger_keeps_what_the_agent_set(serve, tmp_path, transport, delta):
    path = tmp_path / "ledger"
    async with training(serve, team(), transport, delta, ledger=path) as (trainer, _):
        first = await within(trainer.rollout(rollout_id="r1", messages=[USER]))
    async with training(serve, team(), transport, delta, ledger=path) as (trainer, _):
        [again] = [outcome async for outcome in trainer.unconfirmed()]
    check(first)
    check(again)
    assert first.samples == again.samples


async def test_sync_trainer_takes_a_mapping_and_calls_each_policy_one_at_a_time(serve):
    open_calls, most = Counter(), Counter()

    def policy(request):
        open_calls[request.policy] += 1
        most[request.policy] = max(most[request.policy], open_calls[request.policy])
        made = answer(request, "fine")
        open_calls[request.policy] -= 1
        return made

    server = await serve(Team())
    policies = {"planner": policy, "solver": policy, "judge": Named("judge")}
    requests = [RolloutRequest(rollout_id=f"r{n}", messages=[USER]) for n in range(4)]

    def run():
        with SyncTrainer([server.address], policies) as trainer:
            return list(trainer.run(requests))

    for outcome in await asyncio.to_thread(run):
        check(outcome)
    assert most == {"planner": 1, "solver": 1}


@pytest.mark.parametrize(("transport", "delta"), WAYS, ids=IDS)
async def test_an_unknown_policy_is_refused_by_name(serve, transport, delta):
    refusals = []

    class Lost(Team):
        name = "lost"

        async def run(self, ctx):
            sample = ctx.add_sample(policy="judge")
            try:
                await ctx.chat([USER], sample=sample)
            except InvalidArgument as error:
                refusals.append(error.violations)
                raise

    policies = {"": Named(""), "solver": Named("solver")}
    async with training(serve, policies, transport, delta, agent=Lost()) as (trainer, _):
        outcome = await within(trainer.rollout(rollout_id="r1", messages=[USER]))
    assert refusals == [(("policy", "'judge' is not a policy of this trainer; it has '', 'solver'"),)]
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "trainer")
    assert outcome.failure.reason == "CHAT_REFUSED"
    assert "'judge' is not a policy of this trainer" in outcome.failure.message


@pytest.mark.parametrize(("transport", "delta"), WAYS, ids=IDS)
async def test_a_single_policy_answers_the_chats_that_name_none(serve, transport, delta):
    async with training(serve, lambda request: answer(request, "fine"), transport, delta) as (trainer, _):
        outcome = await within(trainer.rollout(rollout_id="r1", messages=[USER]))
    assert "'planner' is not a policy of this trainer; it has '', the only one" in outcome.failure.message


async def test_without_an_unnamed_policy_a_chat_that_names_none_is_refused():
    cache = RolloutCache({"judge": lambda request: answer(request, "fine")})
    with pytest.raises(InvalidArgument, match="'' is not a policy of this trainer; it has 'judge'"):
        cache.chat(ChatRequest(rollout_id="r", messages=[USER]), 0.0)
    asked = cache.chat(ChatRequest(rollout_id="r", messages=[USER], policy="judge"), 0.0)
    assert asked.kept().message["content"] == "fine"


async def test_chats_are_compared_by_their_policy_too():
    cache = RolloutCache(dict.fromkeys(("", "judge"), lambda request: answer(request, "fine")))
    chat = ChatRequest(rollout_id="r", messages=[USER])
    assert cache.chat(chat, 0.0) is cache.chat(chat, 0.0)
    with pytest.raises(AlreadyExists):
        cache.chat(replace(chat, policy="judge"), 0.0)
    with pytest.raises(AlreadyExists):  # also a policy that the trainer does not have
        cache.chat(replace(chat, policy="other"), 0.0)


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ({}, ValueError, "policy: the mapping is empty"),
        ({"a": 1}, TypeError, "policy: 1 is not callable"),
        ({1: answer}, ValueError, "policy: is a int, not a str"),
        ({"a\n": answer}, ValueError, "policy: has a character that cannot be printed"),
        ({"x" * 257: answer}, ValueError, "policy: has 257 characters"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_refused(policy, error, message):
    for trainer in (Trainer, SyncTrainer):
        with pytest.raises(error, match=message):
            trainer(["127.0.0.1:1"], policy)


async def test_each_policy_is_entered_once(serve):
    class Entered(Named):
        async def __call__(self, request):
            assert self.log == ["in"]
            return answer(request, "fine")

        async def __aenter__(self):
            self.log.append("in")

        async def __aexit__(self, *exc):
            self.log.append("out")

        log: list = []  # noqa: RUF012 - replaced before its use

    Entered.log = []
    shared = Entered("")
    async with training(serve, {"planner": shared, "solver": shared, "judge": shared}) as (trainer, _):
        check(await within(trainer.rollout(rollout_id="r1", messages=[USER])))
    assert Entered.log == ["in", "out"]


def test_what_is_trained_on():
    """trainable_samples() leaves out what the author does not want trained on, and what has no reward."""
    outcome = ended("r1", main=0.5, critic=1.0, silent=None)
    assert {name: sample.reward for name, sample in outcome.trainable_samples().items()} == {"main": 0.5, "critic": 1.0}
    unwanted = replace(
        outcome, samples={name: replace(sample, train=False) for name, sample in outcome.samples.items()}
    )
    assert unwanted.trainable_samples() == {}
    assert unwanted.not_trainable_reason.startswith("main: its author does not want it trained on (train=False); ")
    batch = pad([unwanted], untrainable="skip")
    assert (len(batch), [skipped.sample for skipped in batch.skipped]) == (0, [""])


def ended(rollout_id, **rewards):
    """An outcome with trainable samples of these rewards; `judge` is not to be trained on."""
    block = TokenBlock.of([1, 2], [-0.5, -0.5])
    segment = Segment(ids=block.ids, logprobs=block.logprobs, mask_runs=(0, 2), chats=(1,))
    samples = {
        name: Sample(segments=(segment,), trainable=True, reward=reward, train=False if name == "judge" else None)
        for name, reward in rewards.items()
    }
    return RolloutOutcome(rollout_id=rollout_id, status=OutcomeStatus.COMPLETED, samples=samples)


def test_advantages_compare_the_samples_of_one_name():
    """The rollouts have no reward of their own; a sample without a reward, and the judge's, are left out."""
    group = [ended("a", solver=1.0, critic=0.0, judge=5.0), ended("b", solver=0.0, critic=0.0, silent=None)]
    found = advantages(group, "grpo_no_std")
    assert found.keys == (("a", "solver"), ("a", "critic"), ("b", "solver"), ("b", "critic"))
    assert found.values.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert not found.zero_variance
    batch = pad(group, advantages=found)
    assert [(row.rollout_id, row.sample) for row in batch.rows] == list(found.keys)
    assert batch.advantages.tolist() == found.values.tolist()
    assert batch.rewards.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert [(skipped.sample, skipped.reason) for skipped in batch.skipped] == [
        ("judge", "its author does not want it trained on (train=False)"),
        ("silent", "it has no reward"),
    ]


async def test_groups_see_the_rewards_of_samples(serve):
    """README's loop: groups, advantages, a batch; and the trainer's metrics count the mean of the samples."""
    async with training(serve, team()) as (trainer, _):
        equal = RolloutRequest(rollout_id="equal", messages=[USER])
        async with asyncio.timeout(PATIENCE):
            [group] = [group async for group in trainer.groups([equal], group_size=2)]
        metrics = trainer.metrics()
    assert group.zero_variance
    assert group.sample_rewards["main"].tolist() == [0.75, 0.75]
    assert group.sample_rewards["solver"].tolist() == [-1.0, -1.0]
    assert metrics["groups/zero_variance"] == 1
    assert metrics["reward/mean"] == -0.125
    batch = pad(group, advantages=advantages(group))
    assert [(row.sample, row.segment) for row in batch.rows] == [("main", 0), ("main", 1), ("solver", 0)] * 2
    assert batch.rewards.tolist() == [0.75, 0.75, -1.0] * 2
    assert batch.advantages.tolist() == [0.0] * 6
    assert {skipped.sample for skipped in batch.skipped} == {"judge"}
