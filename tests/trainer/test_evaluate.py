"""evaluate(): rollouts that measure the policy, beside those that train it."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw import RawAgentServer
from osmosis_grpc.testing.raw.server_frames import referring
from osmosis_grpc.trainer import Evaluation, RolloutClient, RolloutRequest, Trainer, advantages, pad
from tests.trainer.conftest import PATIENCE, USER, Talker, reply
from tests.trainer.deployment import QUESTION
from tests.waiting import ended

COMPLETED, FAILED = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


class Scored(Talker):
    """Has the reward that its metadata names; raises where there is none. Knows which rollouts were evaluations."""

    name = "scored"

    def __init__(self):
        super().__init__("scored")
        self.evaluations = []

    async def run(self, ctx):
        if ctx.request.evaluation:
            self.evaluations.append(ctx.request.rollout_id)
        ending = await super().run(ctx)
        return replace(ending, reward=ctx.request.metadata["reward"])


def scored():
    return type("A", (Scored,), {})()


def requests(*rewards, name="e"):
    return [
        RolloutRequest(rollout_id=f"{name}{n}", messages=[USER], metadata={} if reward is None else {"reward": reward})
        for n, reward in enumerate(rewards)
    ]


async def test_outcomes_are_marked_and_summed_up(serve, attach_to):
    agent = scored()
    trainer = await attach_to(reply, await serve(agent))
    async with asyncio.timeout(PATIENCE):
        evaluation = await trainer.evaluate(requests(1.0, 0.0, 0.5, None))
    assert (evaluation.n, evaluation.failed, evaluation.mean_reward) == (4, 1, 0.5)
    assert all(outcome.evaluation for outcome in evaluation.outcomes)
    assert {outcome.rollout_id: outcome.status for outcome in evaluation.outcomes} == {
        "e0": COMPLETED,
        "e1": COMPLETED,
        "e2": COMPLETED,
        "e3": FAILED,
    }
    assert repr(evaluation) == "Evaluation(n=4, failed=1, mean_reward=0.5)"


async def test_an_evaluation_is_never_trained_on(serve, attach_to):
    trainer = await attach_to(reply, await serve(scored()))
    outcomes = (await trainer.evaluate(requests(1.0, 0.0))).outcomes
    assert all(outcome.samples["main"].segments for outcome in outcomes), "they can be looked at"
    assert [outcome.trainable_samples() for outcome in outcomes] == [{}, {}]
    with pytest.raises(InvalidArgument, match=r"rollout e\d is not trained on: it is an evaluation"):
        pad(outcomes)
    with pytest.raises(InvalidArgument, match=r"rollout e\d has no advantage: it is an evaluation"):
        advantages(outcomes)
    batch = pad(outcomes, untrainable="skip")
    assert (len(batch), len(batch.skipped)) == (0, 2)


async def test_the_agent_and_the_server_know(serve, attach_to, stack):
    agent = scored()
    server = await serve(agent)
    trainer = await attach_to(reply, server)
    await trainer.evaluate(requests(1.0))
    assert agent.evaluations == ["e0"]
    client = await stack.enter_async_context(RolloutClient(server.address))
    assert (await ended(client, "e0")).evaluation


async def test_with_callbacks(serve, train, stack):
    server, trainer = await serve(scored()), await train(reply)
    client = await stack.enter_async_context(RolloutClient(server.address))
    for name, evaluation in (("e", True), ("t", False)):
        await client.init(requests(1.0, name=name)[0], evaluation=evaluation, callback=trainer.callback())
        outcome = await trainer.outcome(f"{name}0", PATIENCE)
        assert (outcome.evaluation, bool(outcome.trainable_samples())) == (evaluation, not evaluation)


async def test_a_refused_evaluation_is_one(serve, attach_to):
    trainer = await attach_to(reply, await serve(scored()))
    evaluation = await trainer.evaluate([RolloutRequest(rollout_id="e", agent_loop="nobody")])
    (outcome,) = evaluation.outcomes
    assert (outcome.status, outcome.evaluation, evaluation.failed) == (FAILED, True, 1)
    assert evaluation.mean_reward is None
    assert repr(evaluation) == "Evaluation(n=1, failed=1, mean_reward=none)"


async def test_an_older_server_does_not_echo_the_mark(tmp_path):
    """The trainer knows what it asked for, also after a restart."""
    options = {"listen": "127.0.0.1:0", "ledger": tmp_path / "run.ledger"}
    async with Trainer([], reply, **options) as trainer, RawAgentServer(trainer.address) as server:
        await server.attach()
        asked = [RolloutRequest(rollout_id="e", agent_loop="talk", messages=QUESTION)]
        done = asyncio.ensure_future(trainer.evaluate(asked))
        request = await server.accept()
        assert request.spec.evaluation
        await server.ask(request)
        await server.complete(request, **referring(1, runs=(1, 2)), reward=1.0)
        (outcome,) = (await asyncio.wait_for(done, PATIENCE)).outcomes
        assert outcome.evaluation
    async with Trainer([], reply, **options) as trainer, aclosing(trainer.unconfirmed()) as left:
        again = await asyncio.wait_for(anext(left), PATIENCE)
    assert (again.rollout_id, again.evaluation) == ("e", True)


def test_an_empty_evaluation():
    assert (Evaluation().n, Evaluation().failed, Evaluation().mean_reward) == (0, 0, None)


async def test_rows_have_their_rollouts_and_pass_at_k(serve, attach_to):
    class Sometimes(Scored):
        async def run(self, ctx):
            ending = await super().run(ctx)
            return replace(ending, reward=float(ctx.request.group.index < ctx.request.metadata["reward"]))

    trainer = await attach_to(reply, await serve(type("A", (Sometimes,), {})()))
    async with asyncio.timeout(PATIENCE):
        evaluation = await trainer.evaluate(requests(0, 1, 3, None), group_size=3)
    assert {name: [outcome.reward for outcome in outcomes] for name, outcomes in evaluation.rows.items()} == {
        "e0": [0.0, 0.0, 0.0],
        "e1": [1.0, 0.0, 0.0],
        "e2": [1.0, 1.0, 1.0],
        "e3": [None, None, None],
    }
    assert evaluation.pass_at_k == pytest.approx({1: (1 / 3 + 1) / 4, 2: (2 / 3 + 1) / 4, 3: 2 / 4})
    assert evaluation.summary(threshold=0.0).pass_at_k[1].mean == 3 / 4
    assert evaluation.summary().mean.mean == evaluation.mean_reward


async def test_an_evaluation_of_no_request_is_refused(serve, attach_to):
    trainer = await attach_to(reply, await serve(scored()))
    with pytest.raises(InvalidArgument) as raised:
        await asyncio.wait_for(trainer.evaluate([]), PATIENCE)
    assert [field for field, _ in raised.value.violations] == ["requests"]
