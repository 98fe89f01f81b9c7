"""A workflow over a restart of its server, and its replay."""

import asyncio
import json
import os
from collections import Counter

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatPurpose
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import run, server_process

ENTRY = """
from osmosis_grpc.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, get_rollout_context

class Config(AgentWorkflowConfig):
    name: str = "work"
    times: int = 1

class Work(AgentWorkflow[Config]):
    replayable = True

    async def run(self, ctx):
        messages = list(ctx.prompt)
        for _ in range(ctx.config.times):
            messages.append((await get_rollout_context().chat(messages, sample="work")).message)
            messages.append({"role": "user", "content": "go on"})

class Judge(Grader):
    async def grade(self, ctx):
        verdict = await get_rollout_context().chat([{"role": "user", "content": "good?"}], sample="judge")
        ctx.set_sample_reward("work", float(len(verdict.content)))

config = Config()
"""
SERVE = ("-m", "entry.py", "--state-dir", "state", "--workflow-config", "times=2")


@pytest.mark.slow
@pytest.mark.row("SDK 69")
async def test_a_workflow_and_its_judge_continue_after_a_kill_and_can_be_replayed(tmp_path):
    (tmp_path / "entry.py").write_text(ENTRY)
    sampled = Counter()

    async def policy(request):
        sampled[request.sample, request.chat_number, request.purpose] += 1
        return answer(request, "a reply")

    async with CallbackTrainer(policy) as trainer:
        init = {
            "rollout_id": "r1",
            "messages": [{"role": "user", "content": "hello"}],
            "label": "x",
            "callback": trainer.callback(),
        }
        serve = (*SERVE, "--grpc-port", str(quiet_port()))
        environment = os.environ | {"OSMOSIS_FAILPOINT": "chat.open:3"}  # the judge's chat
        with server_process(*serve, cwd=tmp_path, env=environment) as (process, address):
            async with RolloutClient(address) as client:
                await client.init(**init)
            await asyncio.to_thread(process.wait, 30)
        with server_process(*serve, cwd=tmp_path) as (_, address):
            async with RolloutClient(address) as client:
                assert not (await client.init(**init)).created
                outcome = await trainer.outcome("r1", timeout=30)
    assert (outcome.failure, outcome.reward) == (None, 7.0)
    assert sampled["work", 1, ChatPurpose.POLICY] == sampled["work", 2, ChatPurpose.POLICY] == 1
    assert sampled["judge", 1, ChatPurpose.JUDGE] >= 1
    replay = ("-m", "osmosis_grpc", "replay", "r1", "-m", "entry.py", "--from", "state")
    done = run(*replay, "--workflow-config", "times=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    chats = [json.loads(line) for line in done.stdout.splitlines() if '"chat"' in line]
    assert [chat["same"] for chat in chats] == [True] * 3
    assert run(*replay, "--workflow-config", "times=1", cwd=tmp_path).returncode == 1
