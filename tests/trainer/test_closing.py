"""The end of a trainer: its waiting calls raise, and the next process continues its rollouts."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, Trainer
from tests.attach.cutting_proxy import CuttingProxy
from tests.trainer.conftest import USER, attached, reply, talker
from tests.trainer.deployment import begun, within
from tests.waiting import ended, until

CANCELLED, COMPLETED, FAILED = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


async def test_closing_a_trainer_raises_unavailable_from_every_waiting_call(serve):
    agent = talker()
    agent.gate("r1")
    async with attached(reply, await serve(agent, max_concurrent=1, max_queued=0)) as trainer:
        running, queued = begun(trainer.rollout(rollout_id="r1")), begun(trainer.rollout(rollout_id="r2"))
        generator = trainer.run([RolloutRequest(rollout_id="r3")])
        yielded = begun(anext(generator))
        await until(lambda: agent.started == ["r1"])
    for waiting in (running, queued):
        with pytest.raises(Unavailable, match="closed"):
            await waiting
    assert (await yielded).status is FAILED
    await generator.aclose()


async def test_a_closed_trainer_takes_nothing(serve):
    async with attached(reply, await serve(talker())) as trainer:
        pass
    with pytest.raises(CallError):
        await within(trainer.rollout(rollout_id="r1"))


async def test_the_next_process_continues_the_rollouts_of_one_that_was_cut_off(serve, stack):
    """It asks for the same rollout. The open chat is asked there; the other chats are read from the events."""
    sampled, held = [], asyncio.Event()

    def policy(who):
        async def sample(request):
            sampled.append((who, request.chat_number))
            if sampled[-1] == ("first", 2):
                held.set()
                await asyncio.sleep(3600)
            return reply(request)

        return sample

    request = RolloutRequest(rollout_id="r", messages=[USER], metadata={"turns": 4})
    server = await serve(talker())
    proxy = await stack.enter_async_context(CuttingProxy(server.address))
    for who, address in (("first", proxy.address), ("second", server.address)):
        async with Trainer([address], policy(who)) as trainer:
            running = begun(trainer.rollout(request))
            if who == "first":
                await within(held.wait())
                await cut_off(proxy, trainer)
            else:
                outcome = await running
        if who == "first":
            with pytest.raises(Unavailable, match="closed"):
                await running
    assert outcome.status is COMPLETED, outcome.failure
    assert outcome.attempt == 1
    assert sampled == [("first", 1), ("first", 2), ("second", 2), ("second", 3), ("second", 4)]
    sample = outcome.samples["main"]
    assert sample.trainable, sample.not_trainable_reason
    assert [segment.chats for segment in sample.segments] == [(1,), (2, 3, 4)], "its prompt had other ids"
    assert [chat.chat_number for chat in sample.chats] == [1, 2, 3, 4]


async def cut_off(proxy, trainer):
    """Cut the trainer's connection for good, so that it leaves without a Goodbye, as a process that is killed."""
    proxy.refusing = True
    proxy.cut()
    await until(lambda: not any(server.attached for server in trainer.servers))


async def test_a_trainer_that_was_dialled_and_cut_off_leaves_its_rollouts_to_its_successor(serve, stack):
    held = asyncio.Event()

    async def never(request):
        held.set()
        await asyncio.sleep(3600)

    server = await serve(talker())
    address = "127.0.0.1:0"
    for policy in (never, reply):
        async with Trainer([], policy, listen=address) as trainer:
            if policy is never:
                address = trainer.address
                proxy = await stack.enter_async_context(CuttingProxy(address))
                server.attachments.dial(proxy.address)
            running = begun(trainer.rollout(rollout_id="r"))
            proxy.refusing = False
            if policy is never:
                await within(held.wait())
                await cut_off(proxy, trainer)
            else:
                outcome = await running
        await asyncio.gather(running, return_exceptions=True)
    assert outcome.status is COMPLETED, outcome.failure


async def test_closing_a_trainer_without_a_ledger_ends_its_rollouts_at_once(serve):
    agent = talker()
    agent.gate("r")
    server = await serve(agent)
    async with RolloutClient(server.address) as client:
        async with attached(reply, server) as trainer:
            running = begun(trainer.rollout(rollout_id="r"))
            await until(lambda: agent.running["r"])
        with pytest.raises(Unavailable, match="closed"):
            await running
        outcome = await ended(client, "r")
    assert (outcome.status, outcome.failure.boundary, outcome.failure.reason) == (FAILED, "trainer", "TRAINER_LOST")
    assert outcome.failure.retryable


async def test_closing_a_trainer_with_a_ledger_leaves_its_rollouts_to_the_next_process(serve, tmp_path):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r")
    server = await serve(agent)
    async with attached(reply, server, ledger=path) as trainer:
        running = begun(trainer.rollout(rollout_id="r"))
        await until(lambda: agent.running["r"])
    await asyncio.gather(running, return_exceptions=True)
    async with attached(reply, server, ledger=path) as trainer:
        running = begun(trainer.rollout(rollout_id="r"))
        agent.release("r")
        outcome = await running
    assert (outcome.status, outcome.attempt) == (COMPLETED, 1)
    assert agent.attempts == [("r", 1)]
