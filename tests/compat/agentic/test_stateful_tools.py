"""Tools with a state in agents: one object for each trajectory, released once, also after a cancel."""

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, BaseTool, ReActAgent
from tests.compat.agentic.scripted import Script
from tests.waiting import until

LIVES: list[list[str]] = []


class Counter(BaseTool):
    """Counts its calls."""

    name = "counter"

    async def create(self, trajectory_id):
        self.life = [f"create {trajectory_id}"]
        LIVES.append(self.life)

    async def execute(self, step: int = 1) -> int:
        self.life.append("execute")
        return self.life.count("execute") * step

    async def reward(self):
        self.life.append("reward")

    async def release(self):
        self.life.append("release")


@pytest.fixture(autouse=True)
def _no_lives():
    LIVES.clear()


def rollout_of(llm, tools):
    return AgenticRollout(AgenticRolloutConfig(), llm, tools=tools)


@pytest.mark.row("ARL 34")
async def test_an_agent_uses_one_object_for_each_trajectory_and_releases_it():
    llm = Script("Action: counter()", "Action: counter(step=10)", "Final Answer: x")
    made = await rollout_of(llm, [Counter]).run_batch(["a", "b", "c"])
    for trajectory in made:
        assert [step.tool_result for step in trajectory.steps if step.step_type == "action_result"] == ["1", "20"]
    assert sorted(life[0] for life in LIVES) == sorted(f"create {each.request_id}" for each in made)
    assert all(life[1:] == ["execute", "execute", "reward", "release"] for life in LIVES)


@pytest.mark.row("ARL 34")
async def test_a_cancelled_rollout_releases_its_tools():
    hanging = Script("Action: counter()", seconds=3600)
    async with rollout_of(hanging, {"count": Counter}).stream("Q") as stream:
        await until(lambda: hanging.running == 1)
        stream.cancel()
        _ = [step async for step in stream]
    assert [life[1:] for life in LIVES] == [["reward", "release"]]


@pytest.mark.row("ARL 34")
async def test_an_object_is_shared_and_its_schema_is_in_the_prompt():
    counter = Counter()
    agent = ReActAgent()
    agent.set_tools([counter])
    assert "- counter: Counts its calls." in agent.create_system_prompt()
    trajectory = await agent.run_trajectory("Q", Script("Action: counter()", "Final Answer: x"), "one")
    assert trajectory.steps[2].tool_result == "1"
    assert (
        (await agent.execute_tool_call("counter", {})).metadata["error"].endswith("belongs to a rollout, and none runs")
    )
