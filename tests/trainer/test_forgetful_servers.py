"""Servers that forget rollouts, and servers with copies of one journal."""

import asyncio
import shutil
from pathlib import Path

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.server_frames import HEARTBEAT, accepted
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.processes import server_process
from tests.waiting import until


async def forget(server, seen):
    """Accept every Init, and say of each that it is not known."""
    while True:
        request = await server.stream.next("init")
        seen.append(request.attempt)
        ref = attach_pb2.RolloutRef(rollout_id=request.rollout_id, attempt=request.attempt)
        unknown = attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=[ref]))
        await server.send(accepted(request), unknown)


@pytest.fixture
def forgetting(listening):
    async def start(**options):
        deployment = await listening(**options)
        server = await deployment.server()
        await server.attach()
        server.stream.timeout = 30.0
        seen = []
        task = asyncio.create_task(forget(server, seen))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return deployment, seen

    return start


async def test_run_yields_it_as_failed_and_the_number_of_attempts_is_an_option(forgetting):
    deployment, seen = await forgetting(max_attempts=2)
    requests = [RolloutRequest(rollout_id="r", agent_loop="talk")]
    outcomes = [outcome async for outcome in deployment.trainer.run(requests)]
    assert seen == [1, 2]
    (outcome,) = outcomes
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")
    assert "lost 2 times" in outcome.failure.message


async def test_other_rollouts_run_while_one_waits_for_its_next_attempt(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(max_open_rollouts=1)
    lost = deployment.run("lost")
    request = await server.accept()
    other = deployment.run("other")
    ref = attach_pb2.RolloutRef(rollout_id="lost", attempt=1)
    await server.send(attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=[ref])))
    request = await server.accept()
    assert request.rollout_id == "other"
    await server.complete(request)
    await other
    request = await server.accept()
    assert (request.rollout_id, request.attempt) == ("lost", 2)
    await server.complete(request)
    assert (await lost).attempt == 2


async def test_a_rollout_that_waits_for_its_next_attempt_can_be_cancelled(forgetting, caplog):
    deployment, _ = await forgetting(max_attempts=100)
    running = asyncio.create_task(deployment.trainer.rollout(rollout_id="r", agent_loop="talk"))
    await until(lambda: caplog.text.count("has forgotten 1 rollouts") >= 4)
    await deployment.trainer.cancel("r")
    outcome = await asyncio.wait_for(running, 10)
    assert outcome.status is OutcomeStatus.CANCELLED


QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"


async def test_a_second_process_with_the_same_journal_is_refused_and_the_first_stays(listening):
    deployment = await listening()
    first, copy = await deployment.server(), await deployment.server()
    hello = await first.attach(process_id="one")
    copy.open()
    await copy.send(copy.hello(journal_id=first.journal_id, process_id="two"))
    assert await copy.stream.ended() == "FAILED_PRECONDITION"
    await first.send(HEARTBEAT)
    assert first.stream.over is None
    done = deployment.run("r")
    await first.complete(await first.accept())
    assert (await done).rollout_id == "r"
    await first.stream.cut()
    await until(lambda: not any(server.attached for server in deployment.trainer.servers))
    again = await copy.attach(journal_id=first.journal_id, process_id="two")
    assert again.attachment_id == hello.attachment_id, "once the first has left, it may be that server started again"


async def test_the_same_process_takes_its_own_stream_over(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(process_id="one")
    before = server.stream
    await server.attach(process_id="one")
    assert await before.ended() == "ABORTED"
    assert server.stream.over is None


@pytest.mark.slow
async def test_a_server_with_a_copied_journal_says_so_and_tries_again(tmp_path: Path):
    original, copied = tmp_path / "original", tmp_path / "copy"
    with server_process("-m", CALCULATOR, "--state-dir", str(original)):
        pass
    shutil.copytree(original, copied)
    async with Trainer([], ToolCallingMock(), listen="127.0.0.1:0") as trainer:
        target = trainer.address
        options = ("-m", CALCULATOR, "--connect", target)
        with server_process(*options, "--state-dir", str(original)):
            first = await trainer.rollout(rollout_id="first", messages=QUESTION)
            with server_process(*options, "--state-dir", str(copied)) as (process, _):
                lines = (line for line in process.stderr if "is in use by another agent server" in line)
                for line in [await asyncio.to_thread(next, lines) for _ in range(2)]:
                    assert target in line
                    assert "trying again" in line
                assert "--state-dir" in line
                last = await trainer.rollout(rollout_id="last", messages=QUESTION)
                assert process.poll() is None
        assert [first.status.name, last.status.name] == ["COMPLETED", "COMPLETED"]
        assert len(trainer.servers) == 1
