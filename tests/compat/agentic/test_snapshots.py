"""Rollouts of the coding agent with snapshots: forks at each turn, a killed server, and snapshots that are gone."""

import asyncio
import json
import os
import shutil

import numpy as np
import pytest

from osmosis_grpc.agentic import (
    AgenticRollout,
    AgenticRolloutConfig,
    CodingAgent,
    ReActAgent,
    TrajectoryClient,
    agent_runnable,
)
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import ChatResponse, Fork, RolloutClient, TokenBlock, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.cli.in_process import command
from tests.compat.agentic.repositories import FINISH, OFF_BY_ONE, RUN, TESTS, edit
from tests.compat.agentic.scripted import Script, calls
from tests.ports import quiet_port
from tests.processes import ROOT, run, server_process
from tests.waiting import until

QUESTION = [{"role": "user", "content": "Make the tests pass."}]
REQUEST = {"messages": QUESTION, "metadata": {"files": OFF_BY_ONE, "test_command": TESTS}}
COUNT = calls(("bash_executor", {"command": "date +%N >> runs.txt; cat runs.txt"}))
"""Its result is another one each time, so a fork that ran it again would ask another question."""
GOOD = [COUNT, RUN, edit("pages.py", " - 1]", "]"), COUNT, FINISH]
BAD = [edit("pages.py", "number * size", "0"), FINISH]
CODER = """
from osmosis_grpc.agentic import CodingAgent, agent_runnable
coder = agent_runnable(CodingAgent(snapshots=True), "coder")
"""
FORKED_QUESTION = [{"role": "user", "content": "Q"}]


class Policy:
    """Gives the replies of GOOD. The fork named fork-N gets those of BAD after chat N. Notes the chats."""

    def __init__(self):
        self.asked = []
        self.waits_at, self.may_go_on = 0, asyncio.Event()
        self._scripted = ScriptedPolicy(self._reply)

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        if request.chat_number == self.waits_at:
            await self.may_go_on.wait()
        return await self._scripted(request)

    @staticmethod
    def _reply(request):
        if not request.rollout_id.startswith("fork-"):
            return GOOD[request.chat_number - 1]
        return BAD[request.chat_number - int(request.rollout_id.rpartition("-")[2]) - 1]

    def chats(self, rollout_id):
        return [number for asked, number in self.asked if asked == rollout_id]


def coder(**options):
    return agent_runnable(CodingAgent(snapshots=True, **options), "coder")


def results(outcome):
    return [message["content"] for message in outcome.messages if message["role"] == "tool"]


def snapshots(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
async def served(tmp_path):
    """A server with a state folder, its trainer, and its policy."""
    policy = Policy()
    async with (
        AgentServer([coder()], port=0, state_dir=tmp_path / "state") as server,
        Trainer([server.address], policy) as trainer,
    ):
        yield server, trainer, policy


@pytest.mark.slow
async def test_a_coding_rollout_is_forked_at_each_turn(served, tmp_path):
    server, trainer, policy = served
    first = await trainer.rollout(rollout_id="r", **REQUEST)
    assert first.reward == 1.0, first.failure or results(first)
    folder = tmp_path / "state" / "rollouts" / "1"
    saved = snapshots(folder)
    assert sorted(saved) == [f"turn-{number}.tar.gz" for number in range(1, 6)]
    for at in range(1, 6):
        fork = await trainer.rollout(rollout_id=f"fork-{at}", fork=Fork("r", at), **REQUEST)
        assert fork.status == "COMPLETED", fork.failure
        assert policy.chats(f"fork-{at}") == ([] if at == 5 else [at + 1, at + 2])
        assert results(fork)[: at - 1] == results(first)[: at - 1]
        assert fork.reward == (1.0 if at == 5 else 0.0), results(fork)
        assert ("(number + 1) * size]" in fork.extra_fields["patch"]) == (at >= 3)
    again = await trainer.rollout(rollout_id="fork-x-3", fork=Fork("fork-4", 3), **REQUEST)
    assert (again.status, results(again)[:2]) == ("COMPLETED", results(first)[:2]), again.failure
    assert snapshots(folder) == saved
    async with RolloutClient(server.address) as client:
        kinds = [event.kind async for event in client.events("fork-4")]
    assert [len([k for k in kinds if type(k) is kind]) for kind in (events.ToolCalled, events.ToolReturned)] == [6, 6]


async def killed(tmp_path, name, at, between=lambda: None):
    """Kill the server while the model thinks about chat 4 of a rollout, start it again, and return the outcomes.

    `at` is the chat from which the rollout forks, or 0.
    """
    (tmp_path / "coder.py").write_text(CODER)
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": os.pathsep.join([".", str(ROOT)])}}
    serve = ("-m", "coder:coder", "--state-dir", "state", "--grpc-port", str(quiet_port()))
    policy, first = Policy(), None
    async with CallbackTrainer(policy) as trainer:
        init = {**REQUEST, "callback": trainer.callback()}
        with server_process(*serve, **options) as (process, target):
            async with RolloutClient(target) as client:
                if at:
                    await client.init(**init, rollout_id="r")
                    first = await trainer.outcome("r", timeout=30)
                policy.waits_at = 4
                await client.init(**init, rollout_id=name, fork=Fork("r", at) if at else None)
                await until(lambda: policy.chats(name)[-1:] == [4])
            process.kill()
            await asyncio.to_thread(process.wait)
        policy.may_go_on.set()
        between()
        with server_process(*serve, **options):
            return first, await trainer.outcome(name, timeout=30), policy


@pytest.mark.slow
async def test_a_rollout_goes_on_after_the_server_was_killed(tmp_path):
    _, outcome, policy = await killed(tmp_path, "r", 0)
    assert (outcome.status, outcome.reward) == ("COMPLETED", 1.0), outcome.failure or results(outcome)
    first, second = (json.loads(results(outcome)[number])["stdout"].splitlines() for number in (0, 3))
    assert (len(second), second[:1]) == (2, first), "the first command ran once"
    assert set(policy.chats("r")[:4]) == {1, 2, 3, 4}
    assert policy.chats("r")[-1] == 5


@pytest.mark.slow
async def test_a_fork_goes_on_after_the_server_was_killed_without_its_original(tmp_path):
    """The fork has the snapshots of the original among its own, so the original may be deleted."""
    folders = tmp_path / "state" / "rollouts"
    first, outcome, policy = await killed(tmp_path, "fork-3", 3, lambda: shutil.rmtree(folders / "1"))
    assert (outcome.status, outcome.reward) == ("COMPLETED", 0.0), outcome.failure
    assert results(outcome)[:2] == results(first)[:2]
    assert set(policy.chats("fork-3")) == {4, 5}


async def test_a_fork_without_its_snapshot_says_so(served, tmp_path):
    _, trainer, policy = served
    await trainer.rollout(rollout_id="r", **REQUEST)
    folder = tmp_path / "state" / "rollouts" / "1"
    (folder / "turn-2.tar.gz").unlink()
    (folder / "turn-3.tar.gz").write_bytes((folder / "turn-3.tar.gz").read_bytes()[:-100])
    for at, why in ((2, "fork at one of the chats 1, 3, 4, 5"), (3, "the snapshot of chat 3 cannot be used")):
        fork = await trainer.rollout(rollout_id=f"fork-{at}", fork=Fork("r", at), **REQUEST)
        assert (fork.status, fork.failure.reason, fork.failure.boundary) == ("FAILED", "SNAPSHOT_GONE", "server")
        assert why in fork.failure.message
        assert not fork.failure.retryable
        assert policy.chats(f"fork-{at}") == []


async def test_a_server_without_a_state_folder_has_no_snapshots():
    policy = Policy()
    async with AgentServer([coder()], port=0) as server, Trainer([server.address], policy) as trainer:
        first = await trainer.rollout(rollout_id="r", **REQUEST)
        fork = await trainer.rollout(rollout_id="fork-1", fork=Fork("r", 1), **REQUEST)
    assert first.reward == 1.0
    assert fork.failure.reason == "SNAPSHOT_GONE"
    assert "because the server has no state folder" in fork.failure.message


async def test_an_agent_without_snapshots_is_not_forked(tmp_path):
    plain = agent_runnable(CodingAgent(), "coder")
    policy = Policy()
    async with (
        AgentServer([plain], port=0, state_dir=tmp_path / "state") as server,
        Trainer([server.address], policy) as trainer,
    ):
        await trainer.rollout(rollout_id="r", **REQUEST)
        with pytest.raises(FailedPrecondition, match=r"CodingAgent\(snapshots=True\) is replayable"):
            await trainer.rollout(rollout_id="fork-1", fork=Fork("r", 1), **REQUEST)
    assert not (tmp_path / "state" / "rollouts").exists()
    with pytest.raises(InvalidArgument, match="snapshots: "):
        AgenticRollout(AgenticRolloutConfig(agent_type="coding", agent_options={"snapshots": "yes"}), Script())


@pytest.mark.slow
async def test_the_command_forks_a_coding_rollout_on_the_server_and_here(served, tmp_path, monkeypatch):
    server, trainer, _ = served
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coder.py").write_text(CODER)
    await trainer.rollout(rollout_id="r", **REQUEST)
    at = ("fork", "r", "--at-chat", "3", "--model", "mock:echo")
    there = await command(*at, "--from", server.address)
    assert (there.exit_code, "COMPLETED (final_answer), reward 1, 1 live chat" in there.stdout) == (0, True), there
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([".", str(ROOT)])}
    module = ("-m", "osmosis_grpc", *at, "-m", "coder:coder")
    places = ("--from", "state", "--save-dir", "run")
    here = await asyncio.to_thread(run, *module, *places, cwd=tmp_path, env=environment)
    assert (here.returncode, "COMPLETED (final_answer), reward 1, 1 live chat" in here.stdout) == (0, True), here
    assert [path.name for path in (tmp_path / "run" / "rollouts" / "1").iterdir() if path.name == "turn-4.tar.gz"]
    far = await asyncio.to_thread(run, *module, "--from", server.address, cwd=tmp_path, env=environment)
    assert (far.returncode, "r at chat 3 is on its server only; run the fork there" in far.stderr) == (1, True), far


@tool
async def add(a: int) -> int:
    """Adds one."""
    return a + 1


class Model:
    """Calls the tool four times, and then answers. Each reply has 3 new tokens after those of its conversation."""

    def __init__(self):
        self.next, self.asked = 1000, []

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        known = [] if request.known_ids is None else request.known_ids.tolist()
        number = request.chat_number
        text = f"Action: add(a={number})" if number < 5 else f"Final Answer: {request.rollout_id}"
        self.next += 3
        return ChatResponse(
            message={"role": "assistant", "content": text},
            prompt_ids=TokenBlock.of([*known, 7]).ids,
            tokens=TokenBlock.of([self.next, self.next + 1, self.next + 2], [-0.1] * 3),
        )


def trained(outcome):
    return [ids for s in outcome.samples["main"].segments for ids in s.ids[s.mask()].tolist()]


async def test_a_rollout_forked_at_turn_3_of_5_shares_a_prefix_that_is_trained_on_once():
    agent = ReActAgent()
    agent.set_tools([add])
    agent.calculate_step_reward = lambda step, trajectory: 0.1
    model = Model()
    async with (
        AgentServer([agent_runnable(agent)], port=0) as server,
        Trainer([server.address], model) as trainer,
        RolloutClient(server.address) as client,
    ):
        original = await trainer.rollout(rollout_id="r", messages=FORKED_QUESTION)
        fork = await trainer.rollout(rollout_id="f", messages=FORKED_QUESTION, fork=Fork("r", 3))
        trajectory = await TrajectoryClient(client).get("f")
    assert model.asked == [*[("r", n) for n in range(1, 6)], ("f", 4), ("f", 5)]
    for outcome in (original, fork):
        assert outcome.samples["main"].trainable, outcome.samples["main"].not_trainable_reason
        assert list(outcome.trainable_samples()) == ["main"]
    assert (len(trained(original)), len(trained(fork))) == (15, 6)
    assert not set(trained(original)) & set(trained(fork))
    [whole], [forked] = original.samples["main"].segments, fork.samples["main"].segments
    prefix = 12  # three turns: a prompt token and three sampled ones each
    assert np.array_equal(whole.ids[:prefix], forked.ids[:prefix])
    assert len(trajectory.get_tool_calls()) == 4
    assert trajectory.get_final_response() == "f"
