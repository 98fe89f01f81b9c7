"""A worker is killed every two seconds while 500 rollouts run: none is lost, and no reply is sampled twice."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.serve.workers.server import QUESTION, started
from tests.serve.workers.test_workers import Policy
from tests.waiting import wait_until

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


@contextmanager
def memory_of(pid: int, limit: int) -> Iterator[Path]:
    """Give a process so many bytes, in a control group; the kernel kills it when it takes more. Or skip the test."""
    group = Path("/sys/fs/cgroup/memory", f"osmosis-test-{pid}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"may not limit the memory of a process: {error}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


async def test_a_worker_that_the_kernel_kills_for_its_memory_loses_nothing(tmp_path):
    large = [{"role": "user", "content": "x" * 3_000_000}]
    with (
        started(tmp_path, "--max-concurrent", "40", workers=2) as server,
        memory_of(min(server.pids()), 110 * 2**20) as group,
    ):
        async with Trainer(server.targets, EchoPolicy()) as trainer:
            rollouts = (trainer.rollout(rollout_id=f"r{number}", messages=large) for number in range(60))
            outcomes = await asyncio.gather(*rollouts)
        assert "oom_kill 1" in (group / "memory.oom_control").read_text()
    assert {(outcome.status, outcome.attempt) for outcome in outcomes} == {(OutcomeStatus.COMPLETED, 1)}
