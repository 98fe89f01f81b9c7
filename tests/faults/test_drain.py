"""SIGTERM under load. Nothing is lost: what can go on goes on at the next start, what cannot fails and says so."""

import asyncio
import json
import signal
import subprocess

import pytest

from osmosis_grpc.trainer import RolloutClient, Trainer, TrainerConfig
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.servers import ServerProcess
from tests.faults.pure import AGENTS, Counted, check_equal, digest, gathering, passengers, undisturbed
from tests.waiting import until

LIMIT = 1
EXIT = LIMIT + 5
"""Seconds in which the process has to be gone: its own promise."""


async def stopped(server: ServerProcess) -> dict:
    """SIGTERM, and what the process says at its end."""
    server.signal(signal.SIGTERM)
    out, _ = await asyncio.to_thread(server.process.communicate, timeout=EXIT)
    return json.loads(out.splitlines()[-1])


def serving(tmp_path, limit: float = LIMIT) -> ServerProcess:
    arguments = ("--state-dir", str(tmp_path / "state"), "--drain-timeout", str(limit), "--max-concurrent", "20")
    return ServerProcess(*arguments, agents=AGENTS)


@pytest.mark.long
async def test_what_runs_goes_on_or_fails_and_what_waits_waits(stack, tmp_path):
    """40 rollouts, half of them queued, a chat open in each that runs."""
    expected = await undisturbed(tmp_path, 40)
    server = await stack.enter_async_context(serving(tmp_path))
    policy, outcomes = Counted(tmp_path), []
    trainer = await stack.enter_async_context(Trainer(server.address, policy, config=TrainerConfig(longest_pause=0.5)))
    at_work = gathering(trainer, 40, outcomes)
    await until(lambda: len(policy.calls) > 60, "all have begun")
    policy.gate.clear()
    await until(lambda: policy.open >= 20, "a chat open in each that runs")
    before = {outcome.rollout_id for outcome in outcomes}
    received = await stopped(server)
    assert server.process.returncode == 0
    failed = [outcome for outcome in outcomes if outcome.status == "FAILED"]
    assert {(c.finish_reason, c.failure.boundary, c.failure.retryable) for c in failed} <= {
        ("shutdown", "server", True)
    }
    assert {c.rollout_id for c in failed} <= passengers(40)
    assert received["kept"] == 40 - len(outcomes)
    assert received["undelivered"] == 0
    policy.gate.set()
    await server.start()
    await at_work
    assert sorted(c.rollout_id for c in outcomes) == sorted(expected)
    for outcome in outcomes:
        if outcome not in failed:
            assert (outcome.status, digest(outcome)) == ("COMPLETED", expected[outcome.rollout_id])
        assert outcome.attempt == 1
    assert {c.rollout_id for c in outcomes} > before
    assert policy.asked_twice == []


@pytest.mark.long
async def test_what_runs_may_finish_within_the_limit(stack, tmp_path):
    expected = await undisturbed(tmp_path, 40)
    server = await stack.enter_async_context(serving(tmp_path, limit=20))
    policy, outcomes = Counted(tmp_path), []
    trainer = await stack.enter_async_context(Trainer(server.address, policy))
    at_work = gathering(trainer, 40, outcomes)
    await until(lambda: len(policy.calls) > 60, "all have begun")
    server.signal(signal.SIGTERM)
    out, _ = await asyncio.to_thread(server.process.communicate, timeout=25)
    received = json.loads(out.splitlines()[-1])
    assert (server.process.returncode, received["undelivered"], received["kept"]) == (0, 0, 0)
    await at_work
    check_equal(outcomes, expected, policy)


@pytest.mark.long
async def test_what_is_undelivered_stays_for_the_next_process(stack, tmp_path):
    expected = await undisturbed(tmp_path, 20)
    server = await stack.enter_async_context(serving(tmp_path))
    proxy = await stack.enter_async_context(CuttingProxy(server.address))
    policy, outcomes = Counted(tmp_path), []
    trainer = await stack.enter_async_context(Trainer(proxy.address, policy, config=TrainerConfig(longest_pause=0.5)))
    client = await stack.enter_async_context(RolloutClient(server.address))
    at_work = gathering(trainer, 20, outcomes)
    await until(lambda: len(outcomes) > 3, "some are over")
    proxy.refusing = True
    proxy.cut()
    info = await client.info()
    received = await stopped(server)
    assert server.process.returncode == 0
    assert received["kept"] + received["undelivered"] + len(outcomes) >= 20
    assert received["undelivered"]
    await server.start()
    proxy.refusing = False
    await at_work
    assert (await client.info()).journal_id == info.journal_id
    ended = {outcome.rollout_id: outcome for outcome in outcomes}
    assert sorted(ended) == sorted(expected)
    assert len(outcomes) == 20
    for name, outcome in ended.items():
        if name not in passengers(20) or outcome.status == "COMPLETED":
            assert digest(outcome) == expected[name]
    assert policy.asked_twice == []


@pytest.mark.long
async def test_a_second_signal_stops_at_once_and_loses_nothing(stack, tmp_path):
    expected = await undisturbed(tmp_path, 20)
    server = await stack.enter_async_context(serving(tmp_path, limit=600))
    policy, outcomes = Counted(tmp_path), []
    trainer = await stack.enter_async_context(Trainer(server.address, policy, config=TrainerConfig(longest_pause=0.5)))
    at_work = gathering(trainer, 20, outcomes)
    await until(lambda: len(policy.calls) > 30, "all have begun")
    policy.gate.clear()
    server.signal(signal.SIGTERM)
    await asyncio.sleep(0.2)  # the drain has begun
    server.signal(signal.SIGTERM)
    try:
        assert await asyncio.to_thread(server.process.wait, 5) == 128 + signal.SIGTERM
    except subprocess.TimeoutExpired:
        pytest.fail("it drains on")
    server.process.stdout.close()
    policy.gate.set()
    await server.start()
    await at_work
    assert sorted(c.rollout_id for c in outcomes) == sorted(expected)
    for outcome in outcomes:
        if outcome.rollout_id not in passengers(20) or outcome.status == "COMPLETED":
            assert digest(outcome) == expected[outcome.rollout_id]
        else:
            assert (outcome.status, outcome.finish_reason) == ("FAILED", "restart")
    assert policy.asked_twice == []
