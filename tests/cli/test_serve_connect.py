"""serve --connect: the agent server dials its trainers, and dials them again."""

import asyncio
import json
import os
import signal
import textwrap

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import server_process
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
PATIENCE = 20.0

TALKER = """
from osmosis_grpc.rollout import RolloutAgentLoop

class Talker(RolloutAgentLoop):
    name = "talker"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.metadata.get("turns", 1)):
            messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=0.5)

agent = Talker()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "talking.py").write_text(textwrap.dedent(TALKER))
    return tmp_path


async def attached(*trainers):
    await until(lambda: all(t.servers and all(server.attached for server in t.servers) for t in trainers))


def within(awaitable):
    return asyncio.wait_for(awaitable, PATIENCE)


async def test_it_serves_the_trainer_that_it_dials():
    async with Trainer([], ToolCallingMock(), listen="127.0.0.1:0") as trainer:
        with server_process(*CALCULATOR, "--connect", trainer.address) as (process, _):
            await attached(trainer)
            [server] = trainer.servers
            assert server.agent_loops == ("calculator",)
            outcome = await within(trainer.rollout(rollout_id="r", messages=QUESTION))
            assert outcome.status is OutcomeStatus.COMPLETED
            assert outcome.samples["main"].trainable
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
            await until(lambda: not trainer.servers[0].attached)


@pytest.mark.slow
async def test_two_trainers_at_once_and_a_callback_beside_them(forked, folder):
    replies = {name: (lambda request, name=name: answer(request, name)) for name in ("one", "two")}
    async with (
        Trainer([], replies["one"], listen="127.0.0.1:0") as one,
        Trainer([], replies["two"], listen="127.0.0.1:0") as two,
        CallbackTrainer(ToolCallingMock()) as third,
    ):
        connect = ("--connect", one.address, "--connect", two.address, "--connect", one.address)
        with forked.serving("-m", "talking:agent", *connect, cwd=folder) as address:
            await attached(one, two)
            assert len(one.servers) == len(two.servers) == 1
            names = [f"r{n}" for n in range(5)]
            outcomes = await asyncio.gather(
                *(
                    within(trainer.rollout(rollout_id=f"{who}-{name}", messages=QUESTION, metadata={"turns": 3}))
                    for who, trainer in (("one", one), ("two", two))
                    for name in names
                )
            )
            for outcome in outcomes:
                said = [m["content"] for m in outcome.messages if m["role"] == "assistant"]
                assert said == [outcome.rollout_id.partition("-")[0]] * 3
            async with RolloutClient(address) as client:
                await client.init(rollout_id="r", messages=QUESTION, callback=third.callback())
                assert (await third.outcome("r", PATIENCE)).status is OutcomeStatus.COMPLETED


@pytest.mark.slow
async def test_a_trainer_that_is_started_again_is_dialled_again(folder):
    address = f"127.0.0.1:{quiet_port()}"

    def policy(request):
        return answer(request, "yes")

    with server_process("-m", "talking:agent", "--connect", address, cwd=folder) as (process, _):
        for name in ("first", "second"):
            async with Trainer([], policy, listen=address) as trainer:
                assert trainer.address == address
                await attached(trainer)
                outcome = await within(trainer.rollout(rollout_id=name, messages=QUESTION))
                assert outcome.status is OutcomeStatus.COMPLETED
        assert process.poll() is None


@pytest.mark.parametrize("target", ["localhost", "127.0.0.1:70000", "http://127.0.0.1:1", "unix:/tmp/x", ""])
def test_a_target_that_is_none_is_refused(forked, target):
    result = forked.run(
        "-m", "osmosis_grpc.serve", *CALCULATOR, "--connect", target, env=os.environ | {"COLUMNS": "200"}
    )
    assert result.returncode == 2, result.stderr
    assert "--connect" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_trainer_that_is_away_does_not_end_the_server():
    with server_process(*CALCULATOR, "--connect", f"127.0.0.1:{quiet_port()}") as (process, address):
        assert address
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["draining", "stopped"]
    assert "Traceback" not in err
