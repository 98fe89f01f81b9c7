"""Rollouts over callbacks survive cut connections, a killed server, and a server that comes late."""

import asyncio
import signal

import pytest

from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutOutcome, Trainer, TrainerConfig
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, check_whole, requests
from tests.attach.servers import ServerProcess
from tests.waiting import until

ROLLOUTS, CUTS, KILLED_AFTER = 60, 6, 3


@pytest.mark.slow
@pytest.mark.parametrize("with_ledger", [False, True])
async def test_rollouts_over_cut_calls_cut_callbacks_and_a_killed_server(tmp_path, with_ledger):
    policy, asked = CountingPolicy(), list(requests("cut", ROLLOUTS))
    outcomes: list[RolloutOutcome] = []
    async with (
        ServerProcess("--max-concurrent", "128") as server,
        CuttingProxy(server.address) as calls,
        CuttingProxy("") as callbacks,
        Trainer(
            [calls.address],
            policy,
            transport="callback",
            ledger=tmp_path / "ledger" if with_ledger else None,
            config=TrainerConfig(lost_after=60, longest_pause=0.2, callback_target=callbacks.address),
        ) as trainer,
    ):
        callbacks.target = trainer.address

        async def break_it() -> None:
            for n in range(CUTS):
                due = ROLLOUTS * n // (CUTS + 5)
                await until(lambda due=due: len(outcomes) >= due, f"{due} rollouts done", timeout=60)
                cut = ((callbacks,), (calls,), (callbacks, calls))[n % 3]
                await until(
                    lambda cut=cut: (
                        trainer.servers[0].attached and policy.open and all(proxy.connections for proxy in cut)
                    ),
                    "a chat open",
                )
                for proxy in cut:
                    assert proxy.cut()
                if n == KILLED_AFTER:
                    await server.end(signal.SIGKILL)
                    await server.start()

        breaking = asyncio.create_task(break_it())
        try:
            async for outcome in trainer.run(asked, max_in_flight=24):
                outcomes.append(outcome)
                check_whole(outcome, policy.replies.get)
                await outcome.confirm()
            await breaking
        finally:
            breaking.cancel()
    check_run([request.rollout_id for request in asked], outcomes, policy)
    assert {outcome.attempt for outcome in outcomes} == {1, 2}


async def test_a_trainer_that_cannot_be_called_back_for_a_while(serve):
    server, policy = await serve(CalculatorAgent()), CountingPolicy(turns=1)
    async with (
        CuttingProxy("") as callbacks,
        Trainer(
            server.address, policy, transport="callback", config=TrainerConfig(callback_target=callbacks.address)
        ) as trainer,
    ):
        callbacks.target, callbacks.refusing = trainer.address, True
        running = asyncio.create_task(trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "1 + 1"}]))
        await until(lambda: server.engine.capacity().running == 1)
        callbacks.refusing = False
        assert (await asyncio.wait_for(running, 20)).status == "COMPLETED"


async def test_a_server_that_comes_late(stack):
    policy = CountingPolicy(turns=1)
    async with CuttingProxy("") as calls:
        calls.refusing = True
        config = TrainerConfig(longest_pause=0.2)
        async with Trainer(calls.address, policy, transport="callback", config=config) as trainer:
            running = asyncio.create_task(
                trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "1 + 1"}])
            )
            await until(lambda: trainer.metrics()["rollouts/open"] == 1)
            assert not trainer.servers[0].attached
            server = await stack.enter_async_context(AgentServer([CalculatorAgent()], port=0))
            calls.target, calls.refusing = server.address, False
            assert (await asyncio.wait_for(running, 20)).status == "COMPLETED"
