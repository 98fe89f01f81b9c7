"""The classes of workflows: construction, configuration, prompt (rows 1 and 4 to 17 of the SDK's list)."""

import importlib

import pydantic
import pytest
from pydantic import Field

from osmosis_grpc import rollout
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies import EchoPolicy, ScriptedPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderConfig,
    RolloutSample,
    get_rollout_context,
)
from osmosis_grpc.testing import run_rollout
from tests.agent.workflows.made import QUESTION, Asks

NAMES = {
    "agent_workflow": ["AgentWorkflow"],
    "grader": ["Grader"],
    "context": ["AgentWorkflowContext", "GraderContext", "RolloutContext", "get_rollout_context"],
    "types": ["AgentWorkflowConfig", "BaseConfig", "GraderConfig", "GraderStatus", "RolloutSample"],
    "types.config": ["AgentWorkflowConfig", "BaseConfig", "ConcurrencyConfig", "GraderConfig"],
    "types.sample": ["RolloutSample"],
    "validator": ["validate_workflow"],
}


@pytest.mark.parametrize("module", NAMES)
@pytest.mark.row("SDK 1")
def test_both_paths_give_the_same_objects(module):
    deep = importlib.import_module(f"osmosis_grpc.rollout.{module}")
    for name in NAMES[module]:
        assert getattr(deep, name) is getattr(rollout, name)


@pytest.mark.row("SDK 4")
def test_a_workflow_without_run_cannot_be_made():
    class NoRun(AgentWorkflow):
        pass

    with pytest.raises(TypeError, match="abstract"):
        NoRun()


@pytest.mark.parametrize("wrong", [int, Asks(), "Asks"], ids=["class", "instance", "text"])
def test_only_the_class_of_a_workflow_can_be_run(wrong):
    with pytest.raises(TypeError, match="is not the class of a workflow; of an agent loop, give an instance"):
        WorkflowRunnable(wrong)


class Config(AgentWorkflowConfig):
    name: str = "configured"
    limit: int = 10
    notes: list = Field(default_factory=list)


@pytest.mark.parametrize("base", [AgentWorkflow, AgentWorkflow[Config]], ids=["bare", "generic"])
@pytest.mark.row("SDK 5")
async def test_the_class_can_be_generic(base):
    class Either(base):
        async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
            await get_rollout_context().chat(ctx.prompt)

    assert (await run_rollout(Either, EchoPolicy(), QUESTION)).failure is None


async def run_twice(workflow, config):
    """Run two rollouts of one runnable, as a server does. Return their outcomes."""
    runnable = WorkflowRunnable(workflow, config)
    return [await run_rollout(runnable, EchoPolicy(), QUESTION) for _ in range(2)]


@pytest.mark.row("SDK 6", "SDK 8")
async def test_each_rollout_has_its_own_object_with_its_configuration():
    made = []

    class Keeps(Asks):
        async def run(self, ctx):
            assert self.config is ctx.config
            made.append(self)
            await super().run(ctx)

    assert [outcome.failure for outcome in await run_twice(Keeps, Config())] == [None, None]
    assert made[0] is not made[1]
    assert made[0].config is not made[1].config


@pytest.mark.row("SDK 9")
async def test_a_change_of_the_configuration_is_invisible_in_the_next_rollout():
    config, seen = Config(), []

    class Changes(Asks):
        async def run(self, ctx):
            seen.append((ctx.config.limit, list(ctx.config.notes)))
            ctx.config.limit += 1
            ctx.config.notes.append("changed")
            await super().run(ctx)

    await run_twice(Changes, config)
    assert seen == [(10, [])] * 2
    assert config == Config()


@pytest.mark.row("SDK 10")
def test_rules_of_configurations():
    with pytest.raises(pydantic.ValidationError, match=r"name\s+Field required"):
        AgentWorkflowConfig()
    with pytest.raises(pydantic.ValidationError, match="greater than or equal to 1"):
        ConcurrencyConfig(max_concurrent=0)
    config = Config(extra="kept", tool=object)
    assert (config.extra, config.tool, config.description, config.concurrency.max_concurrent) == (
        "kept",
        object,
        None,
        None,
    )
    with pytest.raises(pydantic.ValidationError, match="limit"):
        config.limit = "many"
    assert not isinstance(GraderConfig(name="g"), AgentWorkflowConfig)


@pytest.mark.row("SDK 11", "SDK 12")
async def test_without_an_instance_the_configuration_is_none():
    found = []

    class Falls(AgentWorkflow[Config]):
        async def run(self, ctx):
            found.append((ctx.config, (ctx.config or Config()).limit, ctx.config.limit if ctx.config else 10))
            await get_rollout_context().chat(ctx.prompt)

    await run_rollout(Falls, EchoPolicy(), QUESTION)
    assert found == [(None, 10, 10)]


@pytest.mark.parametrize("value", [None, 3, "done", object(), {"reward": 1.0}])
@pytest.mark.row("SDK 13")
async def test_the_returned_value_is_ignored(value):
    class Returns(Asks):
        async def run(self, ctx):
            await super().run(ctx)
            return value

    outcome = await run_rollout(Returns, EchoPolicy(), QUESTION)
    assert (outcome.status, outcome.reward, outcome.extra_fields) == ("COMPLETED", None, {})


@pytest.mark.row("SDK 14", "SDK 16")
async def test_the_prompt_has_the_messages_of_the_request_and_not_the_label():
    prompts = []

    class Sees(Asks):
        async def run(self, ctx):
            prompts.append([dict(message) for message in ctx.prompt])
            ctx.prompt[0]["content"] = "changed"
            await super().run(ctx)

    await run_rollout(Sees, EchoPolicy(), QUESTION, label="42")
    await run_rollout(Sees, EchoPolicy(), QUESTION[1:], label="42")
    assert prompts == [QUESTION, QUESTION[1:]]
    assert "42" not in str(prompts)


@pytest.mark.row("SDK 17")
async def test_all_keys_of_a_message_reach_the_workflow_and_the_policy():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "hello", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    outcome = await run_rollout(Asks, EchoPolicy(), history)
    assert list(outcome.messages[:3]) == history


@pytest.mark.row("SDK 56")
def test_fields_of_a_sample():
    sample = RolloutSample(id="agent")
    assert sample.model_dump() == {
        "id": "agent",
        "messages": [],
        "label": None,
        "reward": None,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }
    native = [{"role": "assistant", "content": [{"text": "hi"}], "metadata": {"usage": {"tokens": 3}}}]
    assert RolloutSample(id="agent", messages=native).messages == native


class Twice(AgentWorkflow):
    async def run(self, ctx):
        for sample in ("first", "second"):
            await get_rollout_context().chat(ctx.prompt, sample=sample)


class IsLabel(Grader):
    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, float(sample.messages[-1]["content"] == ctx.label))


def policy():
    return ScriptedPolicy(lambda request: "yes" if request.sample == "first" else "no")


async def test_a_workflow_alone_has_samples_and_no_reward():
    outcome = await run_rollout(Twice, policy(), QUESTION)
    assert outcome.status is OutcomeStatus.COMPLETED
    assert [sample.messages[-1]["content"] for sample in outcome.samples.values()] == ["yes", "no"]
    assert outcome.mean_reward is None
    assert get_rollout_context() is None


async def test_a_workflow_and_its_grader_run_as_one_rollout():
    outcome = await run_rollout(WorkflowRunnable(Twice, grader=IsLabel), policy(), QUESTION, label="yes")
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"first": 1.0, "second": 0.0}
