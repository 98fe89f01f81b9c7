"""A worker is killed every two seconds while 500 rollouts run: none is lost, and no reply is sampled twice."""

import asyncio
import random
from collections import Counter

import pytest

from osmosis_grpc.trainer import Trainer
from osmosis_grpc.types import OutcomeStatus
from tests.serve.workers.server import QUESTION, started
from tests.serve.workers.test_workers import Policy

pytestmark = pytest.mark.long

ROLLOUTS = 500
PAUSE = 2.0


async def test_a_worker_is_killed_every_two_seconds(tmp_path):
    policy, applied, kills = Policy(0.2), Counter(), 0
    choose = random.Random(1)
    with started(tmp_path, "--max-concurrent", "20", workers=2) as server:
        async with Trainer(server.targets, policy) as trainer:

            async def one(number):
                outcome = await trainer.rollout(rollout_id=f"r{number}", messages=QUESTION)
                applied[f"r{number}"] += 1
                return outcome

            running = asyncio.ensure_future(asyncio.gather(*map(one, range(ROLLOUTS))))
            while not (await asyncio.wait([running], timeout=PAUSE))[0]:
                alive = [*server.pids()]
                if len(alive) == 2:
                    server.kill(choose.choice(alive))
                    kills += 1
            outcomes = running.result()
    assert kills >= 3
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}
    assert len(applied) == ROLLOUTS
    assert max(policy.sampled.values()) == 1
    assert sum(policy.sampled.values()) == 3 * ROLLOUTS
