"""The trainer is away while a hundred rollouts finish. Their results wait, unchanged."""

import asyncio
import time

import pytest

from osmosis_grpc.trainer import RolloutClient, Trainer, TrainerConfig
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_whole, requests
from tests.attach.servers import ServerProcess
from tests.callback_trainer import CallbackTrainer
from tests.waiting import is_empty, until

COUNT = 100
SHORT, LONG = 3.0, 60.0

lengths = pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SHORT, marks=pytest.mark.long),
        pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(150)]),
    ],
)


async def answered(address: str) -> None:
    """Wait until the replies have arrived: what remains to be done needs no trainer."""
    async with RolloutClient(address) as client, asyncio.timeout(30):
        busy = ("chat", "queued")
        await until(lambda: is_empty(i async for i in client.rollouts() if i.activity.description.startswith(busy)))


async def all_over(address: str, undelivered: int) -> None:
    """Wait until nothing runs, and so many outcomes wait."""
    async with RolloutClient(address) as client, asyncio.timeout(30):
        while (capacity := (await client.info()).capacity).running or capacity.undelivered < undelivered:
            await asyncio.sleep(0.1)  # between two looks


@lengths
async def test_away_from_its_attachment(stack, tmp_path, seconds):
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    proxy = await stack.enter_async_context(CuttingProxy(server.address))
    policy, outcomes = CountingPolicy(turns=1), []
    trainer = await stack.enter_async_context(
        Trainer([proxy.address], policy, config=TrainerConfig(lost_after=seconds + 60))
    )

    async def gather() -> None:
        asked = list(requests("away", COUNT, turns=1, think=8.0))
        async for outcome in trainer.run(asked, max_in_flight=COUNT):
            outcomes.append(outcome)

    at_work = asyncio.create_task(gather())
    await until(lambda: policy.finals == COUNT, "the last chat of each answered")
    await answered(server.address)
    proxy.refusing = True
    proxy.cut()
    away = time.monotonic()
    await all_over(server.address, COUNT - len(outcomes))
    assert len(outcomes) < COUNT / 2, "few end before it is away"
    await asyncio.sleep(max(0.0, away + seconds - time.monotonic()))  # the rest of the time away
    proxy.refusing = False
    back = time.monotonic()
    await at_work
    print(f"\nattachment: {COUNT} outcomes within {time.monotonic() - back:.1f} s of the return")
    for outcome in outcomes:
        check_whole(outcome, policy.replies.get, turns=1)
    assert len({outcome.rollout_id for outcome in outcomes}) == len(outcomes) == COUNT
    assert {outcome.attempt for outcome in outcomes} == {1}


@lengths
async def test_away_from_its_callbacks(stack, tmp_path, seconds):
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    policy = CountingPolicy(turns=1)
    trainer = await stack.enter_async_context(CallbackTrainer(policy))
    proxy = await stack.enter_async_context(CuttingProxy(trainer.callback().target))
    client = await stack.enter_async_context(RolloutClient(server.address))
    asked = list(requests("away", COUNT, turns=1, think=8.0))
    for request in asked:
        await client.init(request, callback=trainer.callback(target=proxy.address))
    await until(lambda: policy.finals == COUNT, "the last chat of each answered")
    await answered(server.address)
    proxy.refusing = True
    proxy.cut()
    away = time.monotonic()
    await all_over(server.address, COUNT // 2)
    await asyncio.sleep(max(0.0, away + seconds - time.monotonic()))  # the rest of the time away
    proxy.refusing = False
    back = time.monotonic()
    async with asyncio.timeout(60):
        outcomes = [await trainer.outcome(request.rollout_id) for request in asked]
    print(f"\ncallback: {COUNT} outcomes within {time.monotonic() - back:.1f} s of the return")
    for outcome in outcomes:
        check_whole(outcome, policy.replies.get, turns=1)
    await until(lambda: is_empty(client.rollouts(undelivered=True)))
