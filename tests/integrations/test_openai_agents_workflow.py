"""The SDK's names for the OpenAI Agents library, in workflows."""

import gc
import warnings
from typing import ClassVar

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import AgentWorkflow, Grader
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

pytestmark = pytest.mark.adapters
agents = pytest.importorskip("agents")
names = pytest.importorskip("osmosis_grpc.rollout.integrations.agents.openai_agents")

QUESTION = [{"role": "user", "content": "What is 2 * 3?"}]
agents.set_tracing_disabled(True)


@agents.function_tool
def multiply(a: float, b: float) -> str:
    """Multiply two numbers."""
    return str(a * b)


def policy(request):
    """Call the tool, and then tell its result."""
    if request.chat_number == 1:
        function = {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
        call = {"id": "c1", "type": "function", "function": function}
        return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]}, tokens=7)
    return answer(request, f"It is {request.messages[-1]['content']}.", tokens=5)


class Multiplies(AgentWorkflow):
    """Solves the task with a session, or without one."""

    async def run(self, ctx):
        session = names.OsmosisMemorySession() if ctx.metadata.get("session") else None
        agent = names.OsmosisAgent(name="solver", model=names.OsmosisRolloutModel(), tools=[multiply])
        await agents.Runner.run(agent, ctx.prompt[-1]["content"], session=session)


class HasLabel(Grader):
    seen: ClassVar[list] = []

    async def grade(self, ctx):
        self.seen.append(ctx.sample.messages)
        ctx.set_reward(float(ctx.label in str(ctx.sample.messages[-1]["content"])))


@pytest.mark.parametrize("session", [True, False])
async def test_a_workflow_is_graded_and_its_tokens_are_the_policys(session, monkeypatch):
    monkeypatch.setattr(HasLabel, "seen", [])
    async with (
        AgentServer([WorkflowRunnable(Multiplies, None, HasLabel)], port=0) as server,
        Trainer([server.address], policy) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r1", messages=QUESTION, label="6.0", metadata={"session": session})
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    (sample,) = outcome.samples.values()
    (segment,) = sample.segments
    assert segment.chats == (1, 2)
    kinds = [message.get("type", "message") for message in HasLabel.seen[0]]
    assert kinds == (["message", "function_call", "function_call_output", "message"] if session else ["message"] * 4)
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(each.message) for each in left_open if each.category is ResourceWarning] == []


async def test_a_session_of_another_rollout_is_refused():
    class Shares(AgentWorkflow):
        session = names.OsmosisMemorySession()

        async def run(self, ctx):
            agent = names.OsmosisAgent(name="solver", model=names.OsmosisRolloutModel())
            await agents.Runner.run(agent, "hello", session=self.session)

    async with AgentServer([WorkflowRunnable(Shares)], port=0) as server, Trainer([server.address], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=QUESTION)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.causes[0].type == "RuntimeError"


async def test_a_session_outside_of_a_rollout_is_a_plain_one():
    session = names.OsmosisMemorySession()
    await session.add_items([{"role": "user", "content": str(number)} for number in range(3)])
    assert [item["content"] for item in await session.get_items(limit=2)] == ["1", "2"]
    assert await session.get_items(limit=0) == []
    assert (await session.pop_item())["content"] == "2"
    await session.clear_session()
    assert await session.pop_item() is None


def test_models_say_what_is_missing():
    with pytest.raises(RuntimeError):
        names.OsmosisAgent(name="solver", model=names.OsmosisRolloutModel())
    with pytest.raises(TypeError):
        names.OsmosisLitellmModel(temperature=1.0)
    with pytest.raises(NotImplementedError):
        names.OsmosisRolloutModel().get_response()
