"""What authors read from a chat, and what they return."""

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
from pydantic import BaseModel

from osmosis_grpc.agent import CompletionsResult, RolloutAgentLoop
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies import EchoPolicy, EveryToolMock
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.rollout import AgentWorkflow, Grader, RolloutResult, get_rollout_context, tool
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.tools import BaseTool

RESULT = CompletionsResult(message={"role": "assistant", "content": "hi"}, finish_reason="stop")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("choices", "use result.message"),
        ("output_text", "use result.content"),
        ("stop_reason", "use result.finish_reason"),
        ("role", 'use result.message["role"]'),
        ("model_dump", "use result.message, which is a dict"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name, hint):
    with pytest.raises(AttributeError, match=f"a chat's result has no attribute '{name}'") as raised:
        getattr(RESULT, name)
    assert hint in str(raised.value)
    assert not hasattr(RESULT, name)


def test_a_result_is_no_dict():
    with pytest.raises(TypeError, match=r"use result\.message"):
        RESULT["choices"]
    with pytest.raises(TypeError, match=r"use result.message, result.content or result.tool_calls"):
        RESULT[0]


def test_other_names_are_as_ever():
    with pytest.raises(AttributeError, match=r"^a chat's result has no attribute 'foo'$"):
        RESULT.foo
    assert copy.deepcopy(RESULT) == RESULT
    assert pickle.loads(pickle.dumps(RESULT)) == RESULT


USER = {"role": "user", "content": "hello"}


class Point(BaseModel):
    a: int = 1


@dataclasses.dataclass
class Size:
    width: int = 2


async def told(result):
    """Return the content of the tool message for a tool that returns `result`."""

    @tool
    async def look():
        """Looks."""
        return result

    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (look,)

        async def run(self, ctx):
            return ctx.complete(await ctx.tool_loop([USER]))

    outcome = await run_rollout(Agent(), EveryToolMock(), [USER])
    assert outcome.status is OutcomeStatus.COMPLETED
    return next(message["content"] for message in outcome.messages if message["role"] == "tool")


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (Point(), {"a": 1}),
        ([Point(), Size()], [{"a": 1}, {"width": 2}]),
        (np.arange(4), [0, 1, 2, 3]),
        (np.int64(3), 3),
        ({"mean": np.float32(0.5)}, {"mean": 0.5}),
        ({1, 2}, [1, 2]),
    ],
    ids=repr,
)
async def test_a_model_reads_the_result_of_a_tool_as_json(result, value):
    assert json.loads(await told(result)) == value


@pytest.mark.parametrize(
    ("result", "place"), [(float("nan"), "look()"), ([1.0, float("inf")], "look()[1]"), ({"it": object()}, "look().it")]
)
async def test_a_result_that_is_no_json_is_an_error_that_names_the_tool(result, place):
    assert (await told(result)).startswith(f"Error: {place}: ")


async def test_a_file_name_that_is_no_utf8_is_readable():
    assert await told(["\udcff.txt"]) == '["\ufffd.txt"]'
    assert await told("\udcff.txt") == "\ufffd.txt"


def ends(use):
    """Make an agent that chats once and ends with `use(ctx)`."""

    class Agent(RolloutAgentLoop):
        name = "agent"

        async def run(self, ctx):
            await ctx.chat([USER])
            return use(ctx)

    return Agent()


async def test_extra_fields_of_any_kind_reach_the_trainer():
    extra = {"n": np.int64(3), "losses": np.array([0.5]), "point": Point()}
    outcome = await run_rollout(ends(lambda ctx: ctx.complete(reward=1.0, extra_fields=extra)), EchoPolicy(), [USER])
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert outcome.extra_fields == {"n": 3, "losses": [0.5], "point": {"a": 1}}


async def test_nan_in_extra_fields_fails_the_rollout_and_names_the_place():
    extra = {"loss": [0.0, 1.0, 2.0, float("nan")]}
    outcome = await run_rollout(ends(lambda ctx: ctx.complete(extra_fields=extra)), EchoPolicy(), [USER])
    assert outcome.failure.reason is FailureReason.AGENT_RESULT_INVALID
    assert "extra_fields.loss[3]:" in outcome.failure.message


GIVEN = {
    "complete": lambda value: ends(lambda ctx: ctx.complete(reward=value)),
    "result": lambda value: ends(lambda ctx: RolloutResult(status="COMPLETED", finish_reason="stop", reward=value)),
    "set_reward": lambda value: ends(lambda ctx: ctx.set_reward(value, sample="") or ctx.complete()),
    "grader": lambda value: WorkflowRunnable(Asks, None, grades(value)),
    "returned": lambda value: program(lambda task: value),
    "reward": lambda value: program(lambda task: {"reward": value}),
    "rewards": lambda value: program(lambda task: {"rewards": {"main": value}}),
}
OF_PROGRAMS = ("returned", "reward", "rewards")
EVERY_WAY = [pytest.param(name, marks=[pytest.mark.adapters] * (name in OF_PROGRAMS)) for name in GIVEN]


def program(function):
    """Return an agent of the older SDK's decorator, which needs the extra `openai`."""
    from osmosis_grpc.integrations.openai import rollout_agent

    @rollout_agent("agent")
    async def agent(task, client):
        await task.ctx.chat(task.messages)
        return function(task)

    return agent


class Asks(AgentWorkflow):
    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt)


def grades(value):
    class Made(Grader):
        async def grade(self, ctx):
            ctx.set_sample_reward("main", value)

    return Made


@pytest.mark.parametrize("given", EVERY_WAY)
@pytest.mark.parametrize(
    ("value", "reward"), [(True, 1.0), (np.False_, 0.0), (np.array(0.5), 0.5)], ids=["bool", "np.bool", "0-d array"]
)
async def test_a_bool_and_a_scalar_are_rewards(given, value, reward):
    outcome = await run_rollout(GIVEN[given](value), EchoPolicy(), [USER], label="42")
    assert outcome.failure is None
    assert (outcome.reward, type(outcome.reward)) == (reward, float)


@pytest.mark.parametrize("given", EVERY_WAY)
@pytest.mark.parametrize("value", [float("nan"), [1.0], "1"], ids=repr)
async def test_a_reward_that_is_no_number_fails_the_rollout_with_the_value(given, value):
    outcome = await run_rollout(GIVEN[given](value), EchoPolicy(), [USER], label="42")
    assert outcome.status is OutcomeStatus.FAILED
    assert repr(value) in outcome.failure.message


async def test_a_tool_with_a_state_gives_its_reward_as_a_bool():
    from osmosis_grpc.tools.base_tool import ToolsOfTrajectory

    class Checks(BaseTool):
        async def execute(self):
            return "ok"

        async def reward(self):
            return np.True_

    async with ToolsOfTrajectory("t", {"checks": Checks()}) as tools:
        pass
    assert tools.rewards == {"checks": 1.0}
