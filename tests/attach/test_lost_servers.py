"""Several servers: one is lost, comes back, has forgotten, or was never there."""

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.trainer import RolloutClient, RolloutOutcome, RolloutRequest, Trainer
from osmosis_grpc.trainer.config import TrainerConfig
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, requests
from tests.attach.servers import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_redial")

BOTH = pytest.mark.parametrize("transport", ["attach", "callback"])


def trainer_at(servers, policy, lost_after, transport="attach"):
    return Trainer(servers, policy, transport=transport, config=TrainerConfig(lost_after=lost_after))


LEFT_RUNNING = (
    "trainer/scheduler.py _lost, renew(): what a lost server ran is cancelled when it comes back, but its outcomes "
    "belong to the attachment that nobody opens again: undelivered until their TTL, and a drain waits for them"
)


def gathering(trainer: Trainer, asked: list[RolloutRequest], into: list[RolloutOutcome]) -> "asyncio.Task[None]":
    """Runs rollouts, their outcomes in `into` as they come."""

    async def gather() -> None:
        async for outcome in trainer.run(asked, max_in_flight=len(asked)):
            into.append(outcome)

    return asyncio.create_task(gather())


def names(asked: list[RolloutRequest]) -> list[str]:
    return [request.rollout_id for request in asked]


async def two_servers(stack: AsyncExitStack, *arguments: str) -> tuple[CuttingProxy, ServerProcess, ServerProcess]:
    """One behind a proxy, one not."""
    first, second = ServerProcess(*arguments), ServerProcess(*arguments)
    await asyncio.gather(stack.enter_async_context(first), stack.enter_async_context(second))
    return await stack.enter_async_context(CuttingProxy(first.address)), first, second


async def everything_over(server: ServerProcess) -> None:
    """Wait until a server has nothing to run and nothing to deliver."""
    async with RolloutClient(server.address) as client:
        async with asyncio.timeout(8):
            while True:
                capacity = (await client.info()).capacity
                if not capacity.running and not capacity.queued and not capacity.undelivered:
                    return
                await asyncio.sleep(0.02)  # between two looks


@pytest.mark.slow
@BOTH
async def test_the_rollouts_of_a_killed_server_go_to_the_others_with_a_higher_attempt(stack, transport):
    servers = [ServerProcess() for _ in range(3)]
    await asyncio.gather(*(stack.enter_async_context(server) for server in servers))
    policy, outcomes = CountingPolicy(), []
    asked = list(requests("killed", 90, think=0.05))
    trainer = await stack.enter_async_context(trainer_at([s.address for s in servers], policy, 0.5, transport))
    await until(lambda: all(server.attached for server in trainer.servers), "attached")
    running = gathering(trainer, asked, outcomes)
    await until(lambda: len(outcomes) > 5 and trainer.servers[1].open, "some done, some open at the second")
    await servers[1].end(signal.SIGKILL)
    await running
    check_run(names(asked), outcomes, policy)
    assert {outcome.attempt for outcome in outcomes} == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unreachable", "silent"])
async def test_a_server_that_comes_back_in_time_keeps_its_rollouts(stack, how):
    proxy, _, second = await two_servers(stack)
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    asked = list(requests("back", 20))
    trainer = await stack.enter_async_context(trainer_at([proxy.address, second.address], policy, 60))
    await until(lambda: all(server.attached for server in trainer.servers), "attached")
    running = gathering(trainer, asked, outcomes)
    await until(lambda: policy.open == 20 and trainer.servers[0].open == 10, "a chat open in each")
    if how == "unreachable":
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not trainer.servers[0].attached, "noticed")
    else:
        proxy.hold("up", "down", new=True)
    policy.gate.set()
    await until(lambda: len(outcomes) == 10, "the other server's rollouts done")
    assert trainer.servers[0].open == 10
    proxy.refusing = False
    proxy.release("up", "down")
    await running
    check_run(names(asked), outcomes, policy)
    assert {outcome.attempt for outcome in outcomes} == {1}


@pytest.mark.slow
@BOTH
async def test_a_restarted_server_has_forgotten_and_gets_its_rollouts_again_at_once(stack, transport):
    server = await stack.enter_async_context(ServerProcess())
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    asked = list(requests("forgot", 10))
    trainer = await stack.enter_async_context(trainer_at([server.address], policy, 3600, transport))
    running = gathering(trainer, asked, outcomes)
    await until(lambda: policy.open == 10, "a chat open in each")
    journal = trainer.servers[0].journal_id
    await server.end(signal.SIGKILL)
    await server.start()
    policy.gate.set()
    await running
    check_run(names(asked), outcomes, policy)
    assert {outcome.attempt for outcome in outcomes} == {2}
    assert trainer.servers[0].journal_id != journal


@pytest.mark.slow
async def test_late_chats_and_outcomes_of_a_lower_attempt_do_no_harm(stack):
    proxy, first, second = await two_servers(stack)
    policy, outcomes = CountingPolicy(), []
    trainer = await stack.enter_async_context(trainer_at([proxy.address, second.address], policy, 0.5))
    await until(lambda: all(server.attached for server in trainer.servers), "attached")
    ends = list(requests("ends", 4, turns=1, think=0.5))  # these are in their last thoughts when the server is lost
    chats = list(requests("chats", 4, turns=3, think=0.5))  # these are going to chat
    running = gathering(trainer, ends + chats, outcomes)
    await until(lambda: len(policy.replies) == 8, "all first chats answered")
    proxy.refusing = True
    proxy.cut()
    await until(lambda: not trainer.servers[0].attached, "noticed")
    at_first = trainer.servers[0].open
    await until(lambda: not trainer.servers[0].open, "lost")
    await asyncio.sleep(0.5)  # the lost server's agents go on alone
    asked_before = [key for key in policy.calls if key[1] == 1]
    proxy.refusing = False
    await until(lambda: trainer.servers[0].attached, "attached again")
    await everything_over(first)
    await running
    await everything_over(second)
    check_run(names(ends), [c for c in outcomes if c.rollout_id.startswith("ends")], policy, turns=1)
    check_run(names(chats), [c for c in outcomes if c.rollout_id.startswith("chats")], policy)
    again = [outcome for outcome in outcomes if outcome.attempt == 2]
    assert len(again) == at_first == 4
    lower = {(c.rollout_id, 1) for c in again}
    late = [key for key in policy.calls if key[:2] in lower and key not in asked_before]
    assert late == [], "chats of an attempt that is over are not sampled"
    async with RolloutClient(first.address) as client:
        for outcome in again:
            old = await client.get(outcome.rollout_id, attempt=1)
            assert not old.undelivered
            if outcome.rollout_id.startswith("chats"):
                assert old.state == "CANCELLED"


@pytest.mark.slow
async def test_a_server_that_comes_back_too_late_and_full_takes_other_rollouts(stack):
    proxy, first, second = await two_servers(stack, "--max-concurrent", "2")  # and four may wait
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    trainer = await stack.enter_async_context(trainer_at([proxy.address, second.address], policy, 0.5))
    await until(lambda: all(server.attached for server in trainer.servers), "attached")
    asked = list(requests("full", 24))
    running = gathering(trainer, asked, outcomes)
    await until(lambda: [s.open for s in trainer.servers] == [6, 6] and policy.open == 4, "both are full")
    proxy.refusing = True
    proxy.cut()
    await until(lambda: not trainer.servers[0].attached and not trainer.servers[0].open, "the first is lost")
    policy.gate.set()
    await until(lambda: len(outcomes) >= 8, "the second goes on with what the first had")
    proxy.refusing = False
    await asyncio.wait_for(running, 4)
    check_run(names(asked), outcomes, policy)
    await everything_over(first)


@BOTH
async def test_no_server_at_all_is_unavailable_and_names_the_targets(transport):
    async with CuttingProxy("127.0.0.1:1") as one, CuttingProxy("127.0.0.1:1") as other:
        one.refusing = other.refusing = True
        async with trainer_at([one.address, other.address], CountingPolicy(), 0.3, transport) as trainer:
            (first, second) = requests("nobody", 2)
            with pytest.raises(Unavailable) as raised:
                await trainer.rollout(first)
            assert one.address in str(raised.value)
            assert other.address in str(raised.value)
            with pytest.raises(Unavailable, match=one.address):
                await trainer.rollout(second)


@pytest.mark.slow
@BOTH
async def test_a_server_that_starts_later_is_found(caplog, transport):
    server, policy, outcomes = ServerProcess(), CountingPolicy(), []
    async with server:
        pass  # it has its port now, and is gone
    asked = list(requests("later", 5))
    async with trainer_at([server.address], policy, 60, transport) as trainer:
        running = gathering(trainer, asked, outcomes)
        await until(lambda: "cannot be reached" in caplog.text, "dialled in vain")
        async with server:
            await running
    check_run(names(asked), outcomes, policy)
