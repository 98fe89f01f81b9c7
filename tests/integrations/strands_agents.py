"""Agents of Strands, their tools and their workflows, for tests."""

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_grpc.testing import run_rollout

strands = pytest.importorskip("strands")

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
NO_CONTEXT = (
    "OsmosisRolloutModel requires an active RolloutContext. "
    "Ensure the execution backend sets up the context before running the workflow."
)


@strands.tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@strands.tool
async def add_slowly(a: int, b: int) -> str:
    """Add two numbers."""
    assert get_rollout_context() is not None
    return str(a + b)


@strands.tool
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


def model(**params):
    from osmosis_grpc.rollout import OsmosisRolloutModel

    return OsmosisRolloutModel(params=params) if params else OsmosisRolloutModel()


def make(name="agent", **options):
    from osmosis_grpc.rollout import OsmosisStrandsAgent

    return OsmosisStrandsAgent(**{"name": name, "model": model(), "callback_handler": None} | options)


def workflow(run):
    """Return a workflow class of a function of the context."""

    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await run(ctx)

    return Workflow


def one_agent(prompt=None, **options):
    async def run(ctx):
        await make(messages=ctx.prompt, **options).invoke_async(prompt)

    return workflow(run)


async def ran(run, policy, prompt=QUESTION, grader=None, **request):
    """Run a workflow whose run() is a function. Return the outcome and what the function returned."""
    returned = []

    async def kept(ctx):
        returned.append(await run(ctx))

    outcome = await run_rollout(WorkflowRunnable(workflow(kept), grader=grader), policy, prompt, **request)
    return outcome, returned[0] if returned else None


def graded_samples(keep):
    class Keeps(Grader):
        async def grade(self, ctx):
            keep.update(ctx.samples)
            for name in ctx.samples:
                ctx.set_sample_reward(name, 1.0)

    return Keeps


def native(role, *blocks):
    return {"role": role, "content": list(blocks)}


def bare(messages):
    """Messages without what Strands adds."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]
