"""What /health counts."""

import asyncio

import aiohttp
import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.gateway.test_contract import health
from tests.processes import serving
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]


async def delivered(session):
    """Return the counts once nothing waits for its delivery."""
    counts = await health(session)
    return None if counts["undelivered"] else counts


async def five_rollouts(ready, name):
    """Run five rollouts to their delivered end; what /health and GetServerInfo count then."""
    async with (
        CallbackTrainer(ToolCallingMock()) as trainer,
        RolloutClient(ready["grpc"]) as client,
        aiohttp.ClientSession(f"http://{ready['http']}") as session,
    ):
        for number in range(5):
            await client.init(rollout_id=f"{name}-{number}", messages=QUESTION, callback=trainer.callback())
            await trainer.outcome(f"{name}-{number}", timeout=20)
        counts = await until(lambda: delivered(session))
        return counts["completed_rollouts"], (await client.info()).capacity.completed


@pytest.mark.slow
async def test_health_counts_what_completed_since_the_start_with_a_journal(tmp_path):
    """A second process on the same journal begins at 0: the first one's rollouts are not its own."""
    arguments = (*CALCULATOR, "-p", "0", "--state-dir", str(tmp_path / "state"), "--log-level", "error")

    def counted(name):
        with serving(*arguments) as (_, ready):
            return asyncio.run(five_rollouts(ready, name))

    assert await asyncio.to_thread(counted, "first") == (5, 5)
    assert await asyncio.to_thread(counted, "second") == (5, 5)


@pytest.mark.slow
async def test_health_counts_what_completed_without_a_journal(tmp_path):
    def counted():
        with serving(*CALCULATOR, "-p", "0", "--no-journal", "--log-level", "error") as (_, ready):
            return asyncio.run(five_rollouts(ready, "r"))

    assert await asyncio.to_thread(counted) == (5, 5)
