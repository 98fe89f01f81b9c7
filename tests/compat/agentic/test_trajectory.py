"""Trajectories: their fields, what they answer, and their dicts."""

import asyncio
import copy
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_grpc.agentic import (
    BaseAgent,
    StepType,
    StopReason,
    Trajectory,
    TrajectoryClient,
    TrajectoryStep,
    agent_runnable,
    policy_of,
)
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(st.text(), JSON, max_size=3)
STEPS = st.builds(
    TrajectoryStep,
    step_type=st.sampled_from(StepType),
    content=st.text(),
    metadata=OBJECT,
    tool_name=st.none() | st.text(),
    tool_args=st.none() | OBJECT,
    tool_result=JSON,
    reward_score=st.none() | st.floats(-1, 1),
    is_correct=st.none() | st.booleans(),
    log_probs=st.none() | st.lists(st.floats(-9, 0), max_size=3),
    attention_mask=st.none() | st.lists(st.integers(0, 1), max_size=3),
    token_ids=st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=3),
    call_id=st.none() | st.text(),
    timestamp=st.none() | st.floats(0, 1e10),
    duration=st.none() | st.floats(0, 1e3),
)
TRAJECTORIES = st.builds(
    Trajectory,
    request_id=st.text(),
    steps=st.lists(STEPS, max_size=4),
    metadata=OBJECT,
    is_completed=st.booleans(),
    final_reward=st.none() | st.floats(-1, 1),
    total_tokens=st.none() | st.integers(0),
    stop_reason=st.none() | st.sampled_from(StopReason),
    error=st.none() | st.text(),
    messages=st.lists(OBJECT, max_size=2),
)


def step(kind, content="", **fields):
    return TrajectoryStep(step_type=kind, content=content, **fields)


@pytest.mark.row("ARL 23")
def test_there_are_five_step_types_and_no_other_is_read():
    assert [kind.value for kind in StepType] == ["observation", "thought", "action", "action_result", "final_answer"]
    with pytest.raises(InvalidArgument, match="step_type: 'guess' is none of observation, thought"):
        TrajectoryStep.from_dict({"step_type": "guess", "content": ""})


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
@pytest.mark.row("ARL 24")
def test_a_step_survives_json(step):
    assert TrajectoryStep.from_dict(json.loads(json.dumps(step.to_dict()))) == step


class Gives(BaseAgent):
    """Returns one of the given trajectories, whose number is the prompt."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    async def run_trajectory(self, prompt, llm_generate_func, request_id="", **kwargs):
        return self.given[int(prompt["content"])]


async def over_grpc(given):
    """Returns the trajectories as a client of a server reads them."""
    agent = Gives([copy.deepcopy(each) for each in given])
    async with (
        AgentServer([agent_runnable(agent, "gives")], port=0) as server,
        Trainer([server.address], policy_of(lambda messages: "")) as trainer,
        RolloutClient(server.address) as client,
    ):
        for number in range(len(given)):
            await trainer.rollout(rollout_id=f"r{number}", messages=[{"role": "user", "content": str(number)}])
        return [await TrajectoryClient(client).get(f"r{number}") for number in range(len(given))]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TRAJECTORIES, min_size=1, max_size=5))
@pytest.mark.row("ARL 24")
def test_all_fields_of_the_steps_arrive_over_grpc(given):
    for read, made in zip(asyncio.run(over_grpc(given)), given, strict=True):
        assert read.steps == made.steps
        assert [step.index for step in read.steps] == list(range(len(made.steps)))
        assert read.final_reward == made.final_reward
        assert {name: read.metadata[name] for name in made.metadata if name != "stop_reason"} == {
            name: value for name, value in made.metadata.items() if name != "stop_reason"
        }


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(TRAJECTORIES)
@pytest.mark.row("ARL 25")
def test_a_trajectory_survives_json(trajectory):
    assert Trajectory.from_dict(json.loads(json.dumps(trajectory.to_dict()))) == trajectory


@pytest.mark.row("ARL 25")
def test_a_dict_of_the_library_loads():
    values = {
        "request_id": "r", "metadata": {}, "is_completed": True, "final_reward": 0.0, "total_tokens": 12,
        "steps": [
            {"step_type": "action", "content": "c", "metadata": {}, "tool_name": "t", "tool_args": {"a": 1},
             "tool_result": None, "reward_score": None, "is_correct": None},
        ],
    }  # fmt: skip
    loaded = Trajectory.from_dict(values)
    assert (loaded.is_completed, loaded.total_tokens, loaded.steps[0].tool_args) == (True, 12, {"a": 1})


@pytest.mark.row("ARL 25")
def test_values_that_json_lacks_have_a_defined_form():
    result = {"set": {2, 1}, "bytes": b"\xff", "nan": math.nan, "tuple": (1, 2), 3: object}
    written = step(StepType.ACTION_RESULT, tool_result=result).to_dict()["tool_result"]
    assert json.loads(json.dumps(written, allow_nan=False)) == {
        "set": [1, 2], "bytes": "b'\\xff'", "nan": "nan", "tuple": [1, 2], "3": "<class 'object'>",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "request_id: is missing"),
        ({"request_id": "r", "reward": 1}, "reward: is not a field of a Trajectory"),
        ({"request_id": "r", "steps": [{"content": ""}]}, "step_type: is missing in a TrajectoryStep"),
        ({"request_id": "r", "steps": 3}, "steps: is a int"),
        ({"request_id": "r", "stop_reason": "bored"}, "stop_reason: 'bored' is none of"),
        ([], "Trajectory: is a list"),
    ],
)
@pytest.mark.row("ARL 25")
def test_a_wrong_dict_is_refused_by_name(values, text):
    with pytest.raises(InvalidArgument, match=text):
        Trajectory.from_dict(values)


@pytest.mark.parametrize(
    ("steps", "response"),
    [
        ([], ""),
        ([step(StepType.OBSERVATION, "q")], ""),
        ([step(StepType.THOUGHT, "t"), step(StepType.ACTION_RESULT, "r")], "t"),
        ([step(StepType.FINAL_ANSWER, "1"), step(StepType.FINAL_ANSWER, "2"), step(StepType.THOUGHT, "t")], "2"),
        ([step(StepType.THOUGHT, "t"), step(StepType.THOUGHT, "oops", metadata={"success": False})], "t"),
    ],
)
@pytest.mark.row("ARL 26")
def test_the_final_response(steps, response):
    assert Trajectory(request_id="r", steps=steps).get_final_response() == response


@pytest.mark.row("ARL 27")
def test_tool_calls_have_a_tool_and_malformed_ones_are_apart():
    good, bad = step(StepType.ACTION, tool_name="t"), step(StepType.ACTION, "Action: ???")
    trajectory = Trajectory(request_id="r", steps=[good, bad, step(StepType.ACTION_RESULT, tool_name="t")])
    assert (trajectory.get_tool_calls(), trajectory.get_malformed_calls()) == ([good], [bad])


@pytest.mark.row("ARL 28")
def test_the_total_reward_is_the_sum_of_the_steps_and_leaves_the_final_reward():
    steps = [step(StepType.THOUGHT, reward_score=reward) for reward in (0.5, None, 0.25)]
    trajectory = Trajectory(request_id="r", steps=steps, final_reward=5.0)
    assert (trajectory.get_total_reward(), trajectory.final_reward) == (0.75, 5.0)
