"""Of two agent servers with copies of one journal, the second is refused by name, and says so."""

import asyncio
import shutil
from pathlib import Path

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.testing.raw.server_frames import HEARTBEAT
from osmosis_grpc.trainer import Trainer
from tests.processes import server_process
from tests.waiting import until

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
