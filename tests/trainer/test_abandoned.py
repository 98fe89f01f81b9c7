"""A policy learns that a reply is no longer wanted: its task is cancelled, and its `cancel` hook is called."""

import asyncio
import threading

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies import ThreadedPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Superseded
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import begun, within
from tests.waiting import until


class Sampler:
    """A policy that samples for a minute, except for attempt 2 and for the rollout "quick"."""

    def __init__(self):
        self.asked, self.stopped, self.told = [], [], []

    async def __call__(self, request):
        name = request.rollout_id, request.attempt, request.sample
        self.asked.append(name)
        if request.attempt == 2 or request.rollout_id == "quick":
            return reply(request)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.stopped.append(name)
            raise
        return reply(request)

    def sampling(self):
        """Return the rollouts of the chats that are sampled for a minute."""
        return [name for name, *_ in self.asked if name != "quick"]

    def cancel(self, request):
        self.told.append((request.rollout_id, request.attempt, request.sample))


async def cancels(trainer, waiting):
    await trainer.cancel("r")
    assert (await waiting).status is OutcomeStatus.CANCELLED


async def supersedes(trainer, waiting):
    assert (await trainer.rollout(request(2))).status is OutcomeStatus.COMPLETED
    with pytest.raises(Superseded):
        await waiting


async def waits_for_the_time_limit(trainer, waiting):
    assert (await waiting).status is OutcomeStatus.DEADLINE_EXCEEDED


def request(attempt=1, **fields):
    return RolloutRequest(rollout_id="r", messages=[USER], attempt=attempt, **fields)


ENDS = {cancels: {}, supersedes: {}, waits_for_the_time_limit: {"agent_timeout": 0.5}}


@pytest.mark.parametrize("end", ENDS)
async def test_a_rollout_that_is_stopped_stops_its_sampling(serve, attach_to, end):
    policy, server = Sampler(), await serve(talker())
    trainer = await attach_to(policy, server)
    waiting = begun(trainer.rollout(request(**ENDS[end])))
    await until(lambda: policy.asked)
    await within(end(trainer, waiting))
    await until(lambda: policy.stopped == policy.told == [("r", 1, "main")])
    assert (await within(trainer.rollout(rollout_id="quick", messages=[USER]))).status is OutcomeStatus.COMPLETED


class Judges(RolloutAgentLoop):
    """Stops waiting for a slow chat of the sample `slow`, while the chat of `main` is open."""

    name = "judges"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        first = asyncio.ensure_future(ctx.chat([USER]))
        try:
            await asyncio.wait_for(ctx.chat([USER], sample="slow"), 0.3)
        except TimeoutError:
            await asyncio.wait({first})
        return ctx.complete([USER], reward=0.5)


async def test_an_agent_that_stops_waiting_stops_that_sampling_alone(serve, attach_to):
    policy = Sampler()

    async def answers_main(chat):
        if chat.sample == "main":
            await until(lambda: policy.stopped)
            return reply(chat)
        return await policy(chat)

    trainer = await attach_to(answers_main, await serve(Judges()))
    assert (await within(trainer.rollout(request()))).status is OutcomeStatus.COMPLETED
    assert policy.stopped == [("r", 1, "slow")]


async def test_an_abandoned_chat_frees_its_place_in_the_window(serve, attach_to):
    """Two chats fit. Both are abandoned without an answer, and later chats are still asked."""
    policy = Sampler()
    trainer = await attach_to(policy, await serve(talker()), max_open_chats=2)
    waiting = [begun(trainer.rollout(rollout_id=f"r{number}", messages=[USER])) for number in range(4)]
    await until(lambda: len(policy.asked) == 2)
    quick = begun(trainer.rollout(rollout_id="quick", messages=[USER]))
    for number in range(4):  # the four are asked in any order
        await until(lambda number=number: len(policy.sampling()) > number)
        await within(trainer.cancel(policy.sampling()[number]))
    assert (await quick).status is OutcomeStatus.COMPLETED
    assert {(await each).status for each in waiting} == {OutcomeStatus.CANCELLED}
    await until(lambda: len(policy.stopped) == 4)


async def test_the_hook_of_a_sync_policy_on_a_thread_is_called(serve, attach_to):
    class Blocking:
        def __init__(self):
            self.asked, self.stop = threading.Event(), threading.Event()

        def __call__(self, chat):
            self.asked.set()
            assert self.stop.wait(60)
            return reply(chat)

        def cancel(self, chat):
            self.stop.set()

    policy = Blocking()
    trainer = await attach_to(ThreadedPolicy(policy), await serve(talker()))
    waiting = begun(trainer.rollout(request()))
    await until(policy.asked.is_set)
    await within(cancels(trainer, waiting))
    await until(policy.stop.is_set)
