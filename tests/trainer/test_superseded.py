"""An attempt that a higher attempt replaces ends without an outcome. Its callers get Superseded at once."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import Aborted
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import FailureReason, RolloutRequest, Superseded
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import begun, within
from tests.waiting import until

COMPLETED = OutcomeStatus.COMPLETED


def request(attempt=1, **fields):
    return RolloutRequest(rollout_id="r", messages=[USER], attempt=attempt, **fields)


class Slow:
    """A policy that answers only attempts from 2 on."""

    def __init__(self):
        self.asked = []

    async def __call__(self, chat):
        self.asked.append(chat.attempt)
        if chat.attempt == 1:
            await asyncio.sleep(3600)
        return reply(chat)


async def test_the_trainers_own_higher_attempt_wakes_the_callers_of_the_lower_one(serve, attach_to):
    policy, server = Slow(), await serve(talker())
    trainer = await attach_to(policy, server)
    first, other = begun(trainer.rollout(request())), begun(trainer.rollout(request()))
    await until(lambda: policy.asked == [1])
    second = await within(trainer.rollout(request(2)))
    assert (second.attempt, second.status) == (2, COMPLETED)
    for waiting in (first, other):
        with pytest.raises(Superseded, match="attempt 1 of rollout r ends without an outcome: attempt 2") as error:
            await waiting
        assert (error.value.rollout_id, error.value.attempt) == ("r", 2)
    assert trainer.metrics()["failures/refused/Superseded"] == 1
    assert trainer.servers[0].open == 0
    await until(lambda: server.engine.capacity().running == 0)


async def test_a_queued_attempt_is_replaced_before_any_server_has_it(serve, attach_to):
    agent = talker()
    agent.gate("busy")
    trainer = await attach_to(reply, await serve(agent, max_concurrent=1, max_queued=0))
    busy = begun(trainer.rollout(rollout_id="busy", messages=[USER]))
    await until(lambda: agent.started == ["busy"])
    first = begun(trainer.rollout(request()))
    await until(lambda: len(trainer.scheduler.rollouts) == 2)
    second = begun(trainer.rollout(request(2)))
    with pytest.raises(Superseded):
        await first
    agent.release()
    assert (await busy).status is (await second).status is COMPLETED
    assert agent.attempts == [("busy", 1), ("r", 2)]


async def test_run_yields_a_superseded_request_as_failed(serve, attach_to):
    policy = Slow()
    trainer = await attach_to(policy, await serve(talker()))

    async def requests():
        yield request()
        await until(lambda: policy.asked == [1])
        yield request(2)

    ended = {outcome.attempt: outcome async for outcome in trainer.run(requests())}
    assert (ended[1].status, ended[1].finish_reason) == (OutcomeStatus.FAILED, "superseded")
    assert (ended[1].failure.reason, ended[1].failure.retryable) == (FailureReason.SUPERSEDED, False)
    assert ended[2].status is COMPLETED


async def test_a_chat_that_the_policy_answers_with_aborted_ends_its_rollout(serve, attach_to):
    def aborts(chat):
        raise Aborted("another trainer has attempt 7", rollout_id=chat.rollout_id, attempt=7)

    server = await serve(talker())
    trainer = await attach_to(aborts, server)
    with pytest.raises(Superseded) as error:
        await within(trainer.rollout(request()))
    assert error.value.attempt == 7
    await until(lambda: server.engine.capacity().running == 0)
    assert server.engine.capacity().undelivered == 0


@pytest.mark.parametrize("open_chat", [True, False])
async def test_the_higher_attempt_of_another_trainer_wakes_the_caller(serve, attach_to, open_chat):
    agent, policy = talker(), Slow()
    if not open_chat:
        agent.gate("r")
    server = await serve(agent)
    trainer, other = await attach_to(policy, server), await attach_to(reply, server)
    first = begun(trainer.rollout(request()))
    await until(lambda: policy.asked if open_chat else agent.started)
    second = begun(other.rollout(request(2)))
    with pytest.raises(Superseded):
        await first
    agent.release()
    assert (await second).status is COMPLETED
    assert (await other.rollout(rollout_id="later", messages=[USER])).status is COMPLETED


async def test_an_init_that_comes_after_a_higher_attempt_is_superseded(serve, attach_to):
    server = await serve(talker())
    trainer, other = await attach_to(reply, server), await attach_to(reply, server)
    assert (await within(other.rollout(request(3)))).status is COMPLETED
    with pytest.raises(Superseded, match="attempt 3 has replaced it"):
        await within(trainer.rollout(request(2)))


async def test_an_automatic_restart_supersedes_nobody(serve, attach_to, stack):
    """The callers of a rollout that its server lost get the outcome of the higher attempt."""
    agent = talker()
    agent.gate("r")
    server = await serve(agent)
    trainer = await attach_to(reply, server)
    waiting = begun(trainer.rollout(request()))
    await until(lambda: agent.started)
    (rollout,) = trainer.scheduler.rollouts.values()
    await until(lambda: rollout.opened)
    trainer.scheduler.restart(rollout, "the test says so")
    agent.release()
    outcome = await waiting
    assert (outcome.attempt, outcome.status) == (2, COMPLETED)
