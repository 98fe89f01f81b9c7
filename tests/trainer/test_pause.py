"""Pausing until no chat is sampled, and policies that learn the version with every call."""

import asyncio

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import FailedPrecondition, Unimplemented
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, VersionSpan
from tests.trainer.conftest import PATIENCE, USER, talker
from tests.trainer.deployment import collect
from tests.waiting import until


class Slow:
    """A policy that answers at its gate; it keeps the version of every call."""

    def __init__(self):
        self.versions, self.open = [], 0
        self.gate = asyncio.Event()

    async def __call__(self, request):
        self.versions.append(request.version)
        self.open += 1
        try:
            await self.gate.wait()
            await asyncio.sleep(0.01)  # a policy call takes some time
        finally:
            self.open -= 1
        return answer(request, f"{request.chat_number}", tokens=3)


def spans(outcome):
    return [span for sample in outcome.samples.values() for s in sample.segments for span in s.versions]


async def test_pause_until_idle_with_64_open_chats_and_a_new_version(serve, attach_to):
    policy = Slow()
    server = await serve(talker(), max_concurrent=64)
    trainer = await attach_to(policy, server)
    trainer.resume(version="step-1")
    requests = [RolloutRequest(rollout_id=f"r{n}", messages=[USER], metadata={"turns": 3}) for n in range(64)]
    running = asyncio.ensure_future(asyncio.wait_for(collect(trainer.run(requests)), PATIENCE))
    await until(lambda: policy.open == 64)

    idle = trainer.pause(idle=True)
    waiting = asyncio.ensure_future(idle)
    await asyncio.sleep(0.05)  # it stays so
    assert not waiting.done(), "64 chats are being sampled"
    policy.gate.set()
    await asyncio.wait_for(waiting, PATIENCE)
    assert policy.open == 0
    assert policy.versions == ["step-1"] * 64
    await asyncio.sleep(0.2)  # no policy call follows
    assert len(policy.versions) == 64, "a policy call began while the trainer was paused"

    trainer.resume(version="step-2")
    outcomes = await running
    assert {o.status for o in outcomes} == {OutcomeStatus.COMPLETED}
    assert len(outcomes) == 64
    assert policy.versions[64:] == ["step-2"] * 128
    for outcome in outcomes:
        assert spans(outcome) == [VersionSpan("step-1", 3), VersionSpan("step-2", 3), VersionSpan("step-2", 3)]


async def test_an_idle_trainer_is_idle_at_once_and_pause_needs_no_await(serve, attach_to):
    policy = Slow()
    policy.gate.set()
    trainer = await attach_to(policy, await serve(talker()))
    trainer.pause()
    await trainer.pause()
    await trainer.pause(idle=True)
    running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=[USER]))
    await asyncio.sleep(0.1)  # no policy call follows
    assert not policy.versions
    trainer.resume()
    assert (await asyncio.wait_for(running, PATIENCE)).status is OutcomeStatus.COMPLETED
    assert policy.versions == [""]


async def test_a_trainer_that_is_resumed_before_it_is_idle_says_so(serve, attach_to):
    policy = Slow()
    trainer = await attach_to(policy, await serve(talker()))
    running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=[USER]))
    await until(lambda: policy.open == 1)
    waiting, unread = asyncio.ensure_future(trainer.pause(idle=True)), trainer.pause(idle=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(trainer.pause(idle=True), 0.01)
    trainer.resume()
    with pytest.raises(FailedPrecondition, match="resumed"):
        await waiting
    del unread
    policy.gate.set()
    assert (await asyncio.wait_for(running, PATIENCE)).status is OutcomeStatus.COMPLETED


async def test_a_policy_that_raises_or_is_sync_is_idle_again(serve, attach_to):
    def policy(request):
        if request.chat_number == 2:
            raise Unimplemented("no more")
        return answer(request, "fine", tokens=2)

    trainer = await attach_to(policy, await serve(talker()))
    trainer.resume(version=7)
    outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", metadata={"turns": 2}), PATIENCE)
    assert outcome.status is OutcomeStatus.FAILED
    assert spans(outcome) == [VersionSpan("7", 2)]
    await asyncio.wait_for(trainer.pause(idle=True), PATIENCE)


async def test_a_cancelled_rollout_leaves_the_trainer_idle(serve, attach_to):
    policy = Slow()
    trainer = await attach_to(policy, await serve(talker()))
    running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=[USER]))
    await until(lambda: policy.open == 1)
    idle = asyncio.ensure_future(trainer.pause(idle=True))
    await trainer.cancel("r")
    await asyncio.wait_for(idle, PATIENCE)
    assert (await running).status is OutcomeStatus.CANCELLED


async def test_versions_of_the_policys_own_stay(serve, attach_to):
    trainer = await attach_to(lambda request: answer(request, "fine", tokens=2, version="mine"), await serve(talker()))
    trainer.resume(version="step-1")
    outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=[USER]), PATIENCE)
    assert spans(outcome) == [VersionSpan("mine", 2)]


@pytest.mark.parametrize("version", [1.5, True, b"x", ["a"]])
async def test_a_version_is_text_or_a_whole_number(serve, attach_to, version):
    trainer = await attach_to(Slow(), await serve(talker()))
    with pytest.raises(TypeError, match="version: is a"):
        trainer.resume(version=version)
