"""A workflow and its grader run as one rollout, over the real engine."""

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_grpc.testing import run_rollout

QUESTION = [{"role": "user", "content": "?"}]


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
