"""The answer to a cancel, by RPC and by frame: not before its commit, and true after a kill -9."""

import asyncio
import os

import pytest
from google.rpc import code_pb2

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, attached_requests
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import server_process
from tests.server.attached import Talk
from tests.storage.disk import Disk
from tests.waiting import until

AGENT = """
import asyncio
from pathlib import Path
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"
    replayable = True
    async def get_tools(self, request):
        if request.rollout_id == "accepting" and not Path("asked").exists():
            Path("asked").touch()
            await asyncio.sleep(3600)
        return []
    async def run(self, ctx):
        await ctx.chat(ctx.request.messages)
        return ctx.complete([], reward=1.0)

agent_loop = Agent()
"""
QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.go()


async def test_an_rpc_is_not_answered_before_its_commit(tmp_path, disk):
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, RolloutClient(server.address) as client:
        disk.hold()
        asking = asyncio.create_task(client.cancel("r"))
        await until(lambda: disk.held)
        for _ in range(5):
            await client.info()
        assert not asking.done()
        disk.go()
        assert [row.rollout_id for row in await asking] == ["r"]


async def test_a_frame_is_not_answered_before_its_commit(tmp_path, disk):
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        disk.hold()
        await trainer.send(cancel("c", rollout_id="r"), cancel("bad", rollout_id="a/b"))
        refused = await stream.next("cancel_reply")  # what changes nothing waits for nothing
        assert (refused.id, refused.status.code) == ("bad", code_pb2.INVALID_ARGUMENT)
        await until(lambda: disk.held)
        await trainer.send(init("other", agent_loop="unknown"))
        await stream.next("init_reply")
        assert stream.count("cancel_reply") == 1
        disk.go()
        assert [row.rollout_id for row in (await stream.next("cancel_reply")).response.results] == ["r"]


async def test_answers_that_wait_for_the_disk_are_bounded(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(attached_requests, "MAX_CANCELLING", 50)
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        disk.hold()
        await trainer.send(*(cancel(f"c{number}", rollout_id=f"a-long-name-{number}") for number in range(9)))
        refused = await stream.next("cancel_reply")
        assert refused.status.code == code_pb2.RESOURCE_EXHAUSTED
        disk.go()
        await stream.until(lambda: stream.count("cancel_reply") == 9)
        await trainer.send(cancel("again", rollout_id="a-long-name-8"))
        await stream.until(lambda: stream.count("cancel_reply") == 10)
        assert stream.all("cancel_reply")[-1].WhichOneof("result") == "response"


@pytest.mark.slow
@pytest.mark.parametrize("rollout_id", ["unknown", "accepting", "running"])
async def test_killed_right_after_the_answer_it_is_remembered(tmp_path, rollout_id):
    (tmp_path / "agents.py").write_text(AGENT)
    asked = asyncio.Event()

    async def policy(request):
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return answer(request, "a reply")

    command = ("-m", "agents:agent_loop", "--state-dir", "state", "--grpc-port", str(quiet_port()))
    async with CallbackTrainer(policy) as trainer:
        request = {"rollout_id": rollout_id, "messages": QUESTION, "callback": trainer.callback()}
        with server_process(*command, cwd=tmp_path, env=os.environ) as (process, address):
            async with RolloutClient(address) as client:
                if rollout_id == "running":
                    await client.init(**request)
                    await asked.wait()
                elif rollout_id == "accepting":
                    starting = asyncio.create_task(client.init(**request))
                    await until((tmp_path / "asked").exists)
                (row,) = await client.cancel(rollout_id)
                process.kill()
                assert row.rollout_id == rollout_id
                if rollout_id == "accepting":
                    with pytest.raises(Unavailable):
                        await starting
            await asyncio.to_thread(process.wait, 30)
        asked.set()
        with server_process(*command, cwd=tmp_path) as (_, address):
            async with RolloutClient(address) as client:
                assert (await client.init(**request)).created == (rollout_id != "running")
                outcome = await trainer.outcome(rollout_id, timeout=30)
    assert outcome.status is OutcomeStatus.CANCELLED
