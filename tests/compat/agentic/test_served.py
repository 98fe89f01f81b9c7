"""The agents on a server: the same trajectories over gRPC as in this process."""

import asyncio

import pytest

from osmosis_grpc.agent.loader import load_agents
from osmosis_grpc.agentic import (
    BaseAgent,
    ReActAgent,
    StopReason,
    Trajectory,
    TrajectoryClient,
    agent_runnable,
    load_trajectories,
    policy_of,
)
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, NotFound
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutFilter
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.compat.agentic.scripted import Script, kinds
from tests.processes import run, server_process
from tests.waiting import until

REPLIES = ["Thought: t\nAction: add(a=40, b=2)", "Final Answer: 42"]
QUESTION = [{"role": "user", "content": "Q"}]
hanging = 0


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool(timeout=None)
async def hang() -> str:
    """Waits."""
    global hanging
    hanging += 1
    try:
        await asyncio.Event().wait()
    finally:
        hanging -= 1


def react():
    agent = ReActAgent()
    agent.set_tools([add, hang])
    return agent_runnable(agent)


@pytest.fixture
async def serving():
    server = AgentServer([react(), CalculatorAgent()], port=0)
    async with server, RolloutClient(server.address) as client:
        yield server.address, TrajectoryClient(client)


async def ask(target, policy, rollout_id, loop="react", **fields):
    async with Trainer([target], policy) as trainer:
        return await trainer.rollout(rollout_id=rollout_id, messages=QUESTION, agent_loop=loop, **fields)


def timeless(steps):
    left_out = {"timestamp", "duration", "token_ids", "log_probs", "attention_mask"}
    return [{key: value for key, value in step.to_dict().items() if key not in left_out} for step in steps]


@pytest.mark.row("ARL 6")
async def test_the_trajectory_over_grpc_is_that_of_this_process(serving):
    target, client = serving
    policy = ScriptedPolicy(REPLIES, latency=0.01)
    async with Trainer([target], policy) as trainer:
        running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION, agent_loop="react"))
        while True:
            try:
                streamed = [step async for step in client.stream("r")]
                break
            except NotFound:
                await asyncio.sleep(0.001)  # the Init is still on its way
        outcome = await running
    unary = await client.get("r")
    agent = ReActAgent()
    agent.set_tools([add, hang])
    local = await agent.run_trajectory("Q", Script(*REPLIES), "r")
    assert timeless(streamed) == timeless(unary.steps) == timeless(local.steps)
    assert (unary.stop_reason, unary.get_final_response()) == (StopReason.FINAL_ANSWER, "42")
    sampled = [step.token_ids for step in unary.steps if step.token_ids]
    assert sum(map(len, sampled)) == sum(segment.sampled for segment in outcome.samples["main"].segments)


@pytest.mark.row("ARL 6")
async def test_a_cancel_stops_the_tool_and_is_the_stop_reason(serving):
    target, client = serving
    async with Trainer([target], ScriptedPolicy(["Action: hang()"])) as trainer:
        running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION, agent_loop="react"))
        await until(lambda: hanging == 1)
        await client.cancel("r")
        outcome = await running
    assert outcome.status is OutcomeStatus.CANCELLED
    await until(lambda: hanging == 0)
    assert (await client.get("r")).stop_reason is StopReason.CANCELLED


@pytest.mark.row("ARL 6")
async def test_a_cancel_stops_the_model_of_the_trainer(serving):
    target, client = serving
    llm = Script("Action: add(1)", seconds=3600)
    async with Trainer([target], policy_of(llm)) as trainer:
        running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION, agent_loop="react"))
        await until(lambda: llm.running == 1)
        await client.cancel("r")
        outcome = await running
        await until(lambda: llm.running == 0)
    assert outcome.status is OutcomeStatus.CANCELLED
    assert (await client.get("r")).stop_reason is StopReason.CANCELLED


@pytest.mark.parametrize("stuck", ["the model", "the tool"])
@pytest.mark.row("ARL 6")
async def test_the_time_limit_of_the_caller_stops_the_model_and_the_tool(serving, stuck):
    target, client = serving
    llm = Script("Action: hang()", seconds=3600 if stuck == "the model" else 0)
    outcome = await ask(target, policy_of(llm), "r", agent_timeout=0.3)
    assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
    await until(lambda: (llm.running, hanging) == (0, 0))
    assert (await client.get("r")).stop_reason is StopReason.TIMEOUT


@pytest.mark.row("ARL 24")
async def test_the_tokens_and_times_of_each_step_arrive_over_grpc(serving):
    target, client = serving
    await ask(target, policy_of(Script(*REPLIES, tokens=True)), "r")
    agent = ReActAgent()
    agent.set_tools([add, hang])
    local = await agent.run_trajectory("Q", Script(*REPLIES, tokens=True), "r")
    remote = await client.get("r")
    names = ("token_ids", "log_probs", "attention_mask", "call_id")
    for name in names:
        values = [getattr(step, name) for step in local.steps]
        assert [getattr(step, name) for step in remote.steps] == values, name
        assert any(values), name
    assert all(step.timestamp for step in remote.steps)
    assert [step.duration is None for step in remote.steps] == [step.duration is None for step in local.steps]


@pytest.mark.row("ARL 33")
async def test_rollouts_are_listed_in_pages_filtered_counted_and_exported(serving, tmp_path):
    target, client = serving
    for number in range(5):
        await ask(target, ScriptedPolicy(REPLIES), f"r{number}")
    await ask(target, ScriptedPolicy(["#### 42"]), "other", "calculator")
    found, token = await client.list(limit=4)
    rest, last = await client.list(page_token=token, limit=4)
    assert ([len(found), len(rest)], last) == ([4, 2], "")
    only = RolloutFilter(agent_loop="calculator")
    [other] = [each async for each in client.all(only)]
    assert (kinds(other), other.get_final_response()) == (["observation", "final_answer"], "#### 42")
    assert await client.export(tmp_path / "t", RolloutFilter(agent_loop="react")) == 5
    with pytest.raises(FileExistsError, match="t exists; pass overwrite=True to replace it"):
        await client.export(tmp_path / "t")
    assert await client.export(tmp_path / "t", RolloutFilter(agent_loop="react"), overwrite=True) == 5
    assert [each.get_final_response() for each in load_trajectories(tmp_path / "t")] == ["42"] * 5
    counted = await client.stats()
    assert (counted.trajectories, counted.completed, counted.tool_calls) == (6, 6, {"add": 5})
    with pytest.raises(NotFound):
        await client.get("nowhere")


@pytest.mark.row("ARL 33")
async def test_a_recorded_rollout_is_replayed_over_grpc(serving):
    target, client = serving
    await ask(target, ScriptedPolicy(REPLIES), "r")
    agent = ReActAgent()
    agent.set_tools([add, hang])
    assert await client.replay("r", agent) == []
    assert await client.replay("r", react()) == []
    agent.set_tools({"add": lambda a, b: 41})  # a new version of the tool
    differences = await client.replay("r", agent)
    assert [each.where for each in differences] == [
        "chat main 1: message 1 of the new ones",
        "chat main 2: message 1 of the new ones",
        "result: final messages",
    ]
    assert "+content: Observation: 41" in "\n".join(differences[1].diff)
    with pytest.raises(NotFound):
        await client.replay("nowhere", agent)
    async with Trainer([target], ScriptedPolicy(["Action: hang()"])) as trainer:
        running = asyncio.ensure_future(trainer.rollout(rollout_id="s", messages=QUESTION, agent_loop="react"))
        await until(lambda: hanging == 1)
        with pytest.raises(FailedPrecondition, match="rollout s has not ended; replay it after its end"):
            await client.replay("s", agent)
        await client.cancel("s")
        await running


@pytest.mark.slow
@pytest.mark.row("ARL 33")
async def test_a_recorded_rollout_is_replayed_by_the_command(tmp_path):
    agent = tmp_path / "agents.py"
    agent.write_text(
        "from osmosis_grpc.agentic import ReActAgent, agent_runnable\n"
        "class Mine(ReActAgent):\n    pass\n"
        "mine = agent_runnable(Mine(tools_config={'calculator': {}}), 'mine')\n"
    )
    state = ("--state-dir", str(tmp_path / "state"))
    replies = ["Action: calculator(expression='6*7')", "Final Answer: 42"]
    with server_process("-m", "agents:mine", *state, cwd=tmp_path) as (_, target):
        outcome = await ask(target, ScriptedPolicy(replies), "r", "mine")
        assert outcome.finish_reason == "final_answer"
        for source in (("--from", target), ("--from", state[1])):
            replayed = run("-m", "osmosis_grpc", "replay", "r", "-m", "agents:mine", *source, cwd=tmp_path)
            assert replayed.returncode == 0, replayed.stderr + replayed.stdout
    valid = run("-m", "osmosis_grpc", "validate", "-m", "agents:mine", cwd=tmp_path)
    assert valid.returncode == 0, valid.stdout


class Custom(BaseAgent):
    async def run_trajectory(self, prompt, llm_generate_func, request_id="", **kwargs):
        trajectory = Trajectory(request_id=request_id, final_reward=0.5)
        trajectory.add_step(
            self.parse_llm_output(await llm_generate_func([{"role": "user", "content": prompt["content"]}]))
        )
        self.finalize_trajectory(trajectory)
        return trajectory


@pytest.mark.parametrize("name", ["custom", "Custom"])
@pytest.mark.row("ARL 15")
async def test_a_custom_agent_is_served(name):
    async with AgentServer([agent_runnable(Custom(), "custom"), Custom()], port=0) as server:
        outcome = await ask(server.address, ScriptedPolicy(["Final Answer: 42"]), "r", name)
    assert (outcome.status, outcome.finish_reason, outcome.reward) == ("COMPLETED", "final_answer", 0.5)
    assert outcome.samples["main"].trainable


@pytest.mark.parametrize("name", ["brief", "Brief"])
@pytest.mark.row("ARL 15")
def test_serve_takes_an_agent_and_its_class(name, tmp_path, monkeypatch):
    (tmp_path / "arl15_agents.py").write_text(
        "from osmosis_grpc.agentic import ReActAgent\nclass Brief(ReActAgent):\n    pass\nbrief = Brief(max_steps=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    [loaded] = load_agents([f"arl15_agents:{name}"])
    assert (loaded.name, loaded.agent.max_steps) == ("react", 3 if name == "brief" else 10)
    for wrong, text in (
        (ReActAgent, r"agent: is a class; pass an agent, such as ReActAgent\(\)"),
        (3, "is not a BaseAgent"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            agent_runnable(wrong)


@pytest.mark.row("ARL 13")
async def test_a_model_that_refuses_is_an_llm_error(serving):
    target, client = serving
    outcome = await ask(target, ScriptedPolicy([]), "r")
    assert outcome.status is OutcomeStatus.FAILED
    trajectory = await client.get("r")
    assert (trajectory.stop_reason, trajectory.is_completed) == (StopReason.LLM_ERROR, False)
