"""Many rollouts at once, and a trainer that is away for long: `serve` in a process of its own."""

import asyncio
import os

import aiohttp
import pytest

from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import health, init
from tests.ports import quiet_port
from tests.processes import serving
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "-p", "0")


async def serve(*arguments, **environment):
    context = serving(*CALCULATOR, *arguments, env=os.environ | environment)
    process, ready = await asyncio.to_thread(context.__enter__)
    return process, ready, context


@pytest.mark.slow
async def test_a_thousand_chats_are_in_flight_at_once():
    connections = {"OSMOSIS_ROLLOUT_CLIENT_MAX_CONNECTIONS": "1000"}
    _, ready, context = await serve("--max-concurrent", "1000", "--log-level", "error", **connections)
    try:
        connector = aiohttp.TCPConnector(limit=100)
        async with (
            LegacyTrainer() as trainer,
            aiohttp.ClientSession(f"http://{ready['http']}", connector=connector) as session,
        ):
            trainer.gate.clear()
            answers = await asyncio.gather(*(init(session, trainer.init_body(f"r{i}")) for i in range(1000)))
            await until(lambda: trainer.in_flight == 1000, timeout=60)
            trainer.gate.set()
            await trainer.completed(1000, seconds=40)
    finally:
        context.__exit__(None, None, None)
    assert {status for status, _, _ in answers} == {202}
    assert len({done["rollout_id"] for done in trainer.outcomes}) == len(trainer.outcomes) == 1000
    assert {done["status"] for done in trainer.outcomes} == {"COMPLETED"}


@pytest.mark.long
async def test_a_trainer_that_is_down_for_30_seconds_gets_every_result_once():
    async def counted(session, name, count):
        return (await health(session))[name] == count

    port = quiet_port()
    _, ready, context = await serve("--log-level", "error")
    try:
        async with aiohttp.ClientSession(f"http://{ready['http']}") as session:
            async with LegacyTrainer(port=port) as trainer:
                trainer.complete_statuses = [503] * 100
                for i in range(20):
                    await init(session, trainer.init_body(f"r{i}"))
                await until(lambda: counted(session, "completed_rollouts", 20))
            await asyncio.sleep(30)
            assert (await health(session))["undelivered"] == 20
            async with LegacyTrainer(port=port) as back:
                await back.completed(20, seconds=60)
                await until(lambda: counted(session, "undelivered", 0))
    finally:
        context.__exit__(None, None, None)
    assert trainer.outcomes == []
    assert sorted(done["rollout_id"] for done in back.outcomes) == sorted(f"r{i}" for i in range(20))
