"""The server stands still for 30 s, or the trainer does. Nothing is lost, and nothing fails for it."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.attach.policies import CountingPolicy, check_run, check_whole, requests
from tests.attach.servers import ServerProcess
from tests.callback_trainer import CallbackTrainer
from tests.faults.kill_loop.history import VARIABLE, read
from tests.faults.pure import AGENTS, undisturbed
from tests.processes import ROOT
from tests.waiting import until

STILL = 30.0


async def still(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STILL)  # stands still
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.timeout(150)
async def test_a_server_that_stands_still(stack, tmp_path):
    """60 rollouts over an attachment, and 20 with callbacks, go on beside each other."""
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    attached, called, outcomes = CountingPolicy(), CountingPolicy(), []
    trainer = await stack.enter_async_context(Trainer([server.address], attached))
    callback = await stack.enter_async_context(CallbackTrainer(called))
    client = await stack.enter_async_context(RolloutClient(server.address))
    asked = list(requests("still", 60))

    async def gather() -> None:
        async for outcome in trainer.run(asked, max_in_flight=20):
            outcomes.append(outcome)

    at_work = asyncio.create_task(gather())
    other = list(requests("called", 20, think=0.2))
    for request in other:
        await client.init(request, callback=callback.callback())
    await until(lambda: outcomes and attached.open and called.open, "something open everywhere")
    await still(server.process.pid)
    async with asyncio.timeout(90):
        await at_work
        ended = [await callback.outcome(request.rollout_id) for request in other]
    check_run([request.rollout_id for request in asked], outcomes, attached)
    assert {outcome.attempt for outcome in outcomes} == {1}
    for outcome in ended:
        check_whole(outcome, called.replies.get)
    assert called.asked_twice == []


@pytest.mark.long
@pytest.mark.timeout(150)
async def test_a_trainer_that_stands_still(stack, tmp_path):
    expected = await undisturbed(tmp_path, 60)
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path / "state"), agents=AGENTS))
    path = tmp_path / "history.jsonl"
    path.touch()
    command = [
        "-m",
        "tests.faults.kill_loop.trainer",
        "--target",
        server.address,
        "--rollouts",
        "60",
        "--in-flight",
        "10",
    ]
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, env=os.environ | {VARIABLE: str(path)}) as trainer:
        await until(lambda: sum(line.op == "applied" for line in read(path)) > 5, "some over")
        await still(trainer.pid)
        assert await asyncio.to_thread(trainer.wait, 60) == 0
    applied = [line for line in read(path) if line.op == "applied"]
    assert len(applied) == 60
    assert {line.id: line.outcome["digest"] for line in applied} == expected
    sampled = [(line.id, *line.key) for line in read(path) if line.op == "sampled"]
    assert len(sampled) == len(set(sampled))
