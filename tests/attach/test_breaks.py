"""Rollouts go on over cut streams and killed servers: each ends once, and no chat is sampled twice."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.trainer import RolloutOutcome, Trainer
from osmosis_grpc.trainer.config import TrainerConfig
from tests.attach.breaker import Breaker, Figures, summary
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, check_whole, requests
from tests.attach.servers import ServerProcess
from tests.waiting import until

LOST_INIT_REPLY = (
    "trainer/transports/attach/link.py _on_chat: a chat that comes before the InitReply that a cut lost is sampled "
    "without tools, and is ALREADY_EXISTS (another body) when it is asked again after the InitReply"
)
KILL, TERM = signal.SIGKILL, signal.SIGTERM


async def broken_run(
    rollouts: int,
    cuts: int,
    restarts: dict[int, signal.Signals],
    *,
    in_flight: int = 64,
    drain_timeout: float = 2.0,
    ledger: Path | None = None,
) -> tuple[Figures, list[RolloutOutcome]]:
    """Rollouts over a proxy that cuts, and a server that is killed: what was broken, and how they ended."""
    policy, began = CountingPolicy(), time.monotonic()
    outcomes: list[RolloutOutcome] = []
    async with (
        ServerProcess("--max-concurrent", "128", "--drain-timeout", str(drain_timeout)) as server,
        CuttingProxy(server.address) as proxy,
        Trainer([proxy.address], policy, ledger=ledger, config=TrainerConfig(lost_after=60)) as trainer,
    ):
        breaker = Breaker(proxy, server, trainer, policy, outcomes)
        breaking = asyncio.create_task(breaker.run(rollouts, cuts, restarts))
        asked = list(requests("cut", rollouts))
        try:
            async for outcome in trainer.run(asked, max_in_flight=in_flight):
                outcomes.append(outcome)
                check_whole(outcome, policy.replies.get)
                await outcome.confirm()
            figures = await breaking
        finally:
            breaking.cancel()
    print(summary(figures, outcomes, time.monotonic() - began))
    check_run([request.rollout_id for request in asked], outcomes, policy)
    return figures, outcomes


@pytest.mark.slow
async def test_sixty_rollouts_over_six_cuts_and_a_killed_server(quick_redial):
    figures, outcomes = await broken_run(60, 6, {3: KILL}, in_flight=24)
    assert figures.cuts == figures.with_open_chat == 6
    assert figures.with_complete_unanswered >= 2
    assert {outcome.attempt for outcome in outcomes} == {1, 2}


@pytest.mark.slow
async def test_the_same_of_a_trainer_with_a_ledger(quick_redial, tmp_path):
    figures, outcomes = await broken_run(60, 6, {3: KILL}, in_flight=24, ledger=tmp_path / "ledger")
    assert figures.cuts == figures.with_open_chat == 6
    assert {outcome.attempt for outcome in outcomes} == {1, 2}
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    assert ledger.unconfirmed == {}
    confirmed = {row.rollout_id: (row.attempt, row.result_id) for row in ledger.take_restored()}
    assert confirmed == {c.rollout_id: (c.attempt, c.result_id) for c in outcomes}
    await ledger.close()


@pytest.mark.long
@pytest.mark.timeout(150)
async def test_two_thousand_rollouts_over_a_hundred_cuts_and_five_restarts(quick_redial):
    figures, outcomes = await broken_run(2000, 100, {14: KILL, 34: TERM, 54: KILL, 74: TERM, 94: KILL})
    assert figures.cuts == figures.with_open_chat == 100
    assert figures.with_complete_unanswered >= 20
    assert figures.complete_on_its_way
    assert figures.outcome_on_its_way
    assert figures.restarts == {"SIGKILL": 3, "SIGTERM": 2}
    assert max(outcome.attempt for outcome in outcomes) > 1


@pytest.mark.slow
async def test_chats_that_come_before_the_lost_answer_to_an_init_have_their_tools(quick_redial):
    policy = CountingPolicy(turns=1)
    policy.gate.clear()
    async with (
        ServerProcess() as server,
        CuttingProxy(server.address) as proxy,
        Trainer([proxy.address], policy, config=TrainerConfig(lost_after=60)) as trainer,
    ):
        await until(lambda: trainer.servers[0].attached, "attached")
        proxy.hold("down")
        (request,) = requests("early", 1, turns=1)
        running = asyncio.create_task(trainer.rollout(request))
        await until(lambda: proxy.holds("down", "question 0"), "the chat asked")
        proxy.cut()
        await until(lambda: policy.open, "the chat asked again")
        await asyncio.sleep(0.1)  # the Init is answered, too
        proxy.cut()
        await until(lambda: not trainer.servers[0].attached, "noticed")
        await until(lambda: trainer.servers[0].attached, "attached again")
        await asyncio.sleep(0.1)  # the chat is asked a third time
        policy.gate.set()
        check_run(["early-0"], [await running], policy, turns=1)


@pytest.mark.slow
@pytest.mark.parametrize("drain_timeout", [0.0, 0.3])
async def test_a_server_that_is_stopped_too_soon_loses_no_rollout(quick_redial, drain_timeout):
    """What it did not finish ends FAILED and may be tried again, or is tried again by the trainer itself."""
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    asked = list(requests("stopped", 20))
    async with (
        ServerProcess("--drain-timeout", str(drain_timeout)) as server,
        Trainer([server.address], policy, config=TrainerConfig(lost_after=60)) as trainer,
    ):

        async def stop() -> None:
            await until(lambda: policy.open == 20, "a chat open in each")
            assert await server.end(TERM) == 0
            policy.gate.set()
            await server.start()

        stopping = asyncio.create_task(stop())
        async for outcome in trainer.run(asked):
            outcomes.append(outcome)
        await stopping
        more = [outcome async for outcome in trainer.run(requests("more", 3))]
    assert sorted(c.rollout_id for c in outcomes) == sorted(request.rollout_id for request in asked)
    for outcome in outcomes:
        if outcome.status == "COMPLETED":
            check_whole(outcome, policy.replies.get)
        else:
            assert (outcome.status, outcome.finish_reason) == ("FAILED", "shutdown")
            assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)
    assert [outcome.status for outcome in more] == ["COMPLETED"] * 3
    assert policy.asked_twice == []


@pytest.mark.slow
async def test_a_server_that_stands_still_for_a_while_loses_nothing():
    policy, outcomes = CountingPolicy(turns=4), []
    asked = list(requests("still", 40, turns=4))
    async with (
        ServerProcess() as server,
        Trainer([server.address], policy, config=TrainerConfig(lost_after=60)) as trainer,
    ):

        async def stand_still() -> None:
            await until(lambda: outcomes and policy.open, "something open")
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(3)  # stands still for longer than a heartbeat
            server.signal(signal.SIGCONT)

        pausing = asyncio.create_task(stand_still())
        async for outcome in trainer.run(asked, max_in_flight=10):
            outcomes.append(outcome)
        await pausing
    check_run([request.rollout_id for request in asked], outcomes, policy, turns=4)
    assert {outcome.attempt for outcome in outcomes} == {1}
