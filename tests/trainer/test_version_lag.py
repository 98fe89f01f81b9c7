"""run() and groups() with max_version_lag: rollouts with old tokens run again."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus, Sample, Segment
from osmosis_grpc.trainer import GroupCounts, RolloutOutcome, RolloutRequest, VersionSpan, version_lag
from tests.trainer.conftest import PATIENCE, USER, talker
from tests.waiting import until


def sampled(request):
    """A policy whose replies have tokens of the trainer's version."""
    return answer(request, "fine", tokens=2)


def requests(count):
    return [RolloutRequest(rollout_id=f"g{n}", messages=[USER]) for n in range(count)]


def of_versions(*versions):
    """An outcome with one segment, which has one token of each version."""
    segment = Segment(
        ids=np.arange(len(versions) + 1, dtype="<u4"),
        logprobs=np.zeros(len(versions), dtype="<f4"),
        mask_runs=(1, len(versions)),
        versions=tuple(VersionSpan(version, 1) for version in versions if version),
    )
    return RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, samples={"main": Sample(segments=(segment,))})


@pytest.mark.parametrize(
    ("versions", "now", "lag"),
    [(("3",), 3, 0), (("3", "5"), "7", 4), (("step-1",), 3, None), (("",), 3, None), (("3",), "", None), ((), 3, None)],
)
def test_the_lag_is_that_of_the_oldest_token(versions, now, lag):
    assert version_lag(of_versions(*versions), now) == lag


async def test_a_rollout_with_an_old_token_runs_again(serve, attach_to):
    first_versions = {"g0": "1", "g1": "2"}

    def policy(request):
        version = first_versions[request.rollout_id] if request.attempt == 1 else request.version
        return answer(request, "fine", tokens=2, version=version)

    trainer = await attach_to(policy, await serve(talker()))
    trainer.resume(version=3)
    async with asyncio.timeout(PATIENCE), aclosing(trainer.run(requests(2), max_version_lag=1)) as outcomes:
        found = {outcome.rollout_id: outcome async for outcome in outcomes}
    assert {name: (outcome.attempt, version_lag(outcome, 3)) for name, outcome in found.items()} == {
        "g0": (2, 0),
        "g1": (1, 1),
    }
    assert trainer.group_counts == GroupCounts(stale=1)


async def test_a_member_that_grows_old_while_its_group_is_open_runs_again(serve, attach_to):
    agent = talker()
    agent.gate("g0-1", "g1-0")  # the free slot of g0-0 goes to g1-0
    trainer = await attach_to(sampled, await serve(agent))
    trainer.resume(version=1)
    async with (
        asyncio.timeout(PATIENCE),
        aclosing(trainer.groups(requests(3), 2, max_in_flight=2, max_version_lag=1)) as groups,
    ):
        first = asyncio.ensure_future(anext(groups))
        await until(lambda: trainer.metrics()["rollouts/completed"] >= 1)
        trainer.resume(version=5)
        agent.release()
        found = [await first, *[group async for group in groups]]
    assert sorted(group.id for group in found) == ["g0", "g1", "g2"]
    assert all(version_lag(outcome, 5) <= 1 for group in found for outcome in group)
    attempts = {outcome.rollout_id: outcome.attempt for group in found for outcome in group}
    assert attempts["g0-0"] == 2
    assert attempts["g0-1"] == 1
    assert trainer.group_counts == GroupCounts(yielded=3, stale=1, zero_variance=3)


async def test_tokens_without_a_version_are_refused(serve, attach_to):
    trainer = await attach_to(sampled, await serve(talker()))
    with pytest.raises(InvalidArgument, match=r"max_version_lag: rollout g0 has tokens whose version is unknown"):
        async with asyncio.timeout(PATIENCE), aclosing(trainer.run(requests(1), max_version_lag=1)) as outcomes:
            await anext(outcomes)


async def test_tokens_of_before_the_first_version_are_too_old(serve, attach_to):
    def policy(request):
        reply = sampled(request)
        trainer.resume(version=4)  # too late for the chat that is being answered
        return reply

    trainer = await attach_to(policy, await serve(talker()))
    async with asyncio.timeout(PATIENCE), aclosing(trainer.run(requests(1), max_version_lag=0)) as outcomes:
        outcome = await anext(outcomes)
    assert (outcome.attempt, version_lag(outcome, 4)) == (2, 0)
    assert trainer.group_counts.stale == 1


async def test_a_version_that_is_missing_again_is_refused(serve, attach_to):
    trainer = await attach_to(
        lambda chat: answer(chat, "", tokens=0 if chat.chat_number > 1 else 2), await serve(talker())
    )
    trainer.resume(version=4)
    twice = [RolloutRequest(rollout_id="g0", messages=[USER], metadata={"turns": 2})]
    with pytest.raises(InvalidArgument, match="max_version_lag"):
        async with asyncio.timeout(PATIENCE), aclosing(trainer.run(twice, max_version_lag=0)) as outcomes:
            await anext(outcomes)
    assert trainer.group_counts.stale == 1


async def test_a_negative_lag_is_refused(serve, attach_to):
    trainer = await attach_to(sampled, await serve(talker()))
    with pytest.raises(ValueError, match="max_version_lag: -1 is negative"):
        await anext(trainer.run(requests(1), max_version_lag=-1))
