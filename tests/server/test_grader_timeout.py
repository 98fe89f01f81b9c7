"""The time limit of a grader, over real sockets."""

import asyncio

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer

USER = {"role": "user", "content": "hello"}


class Asks(AgentWorkflow):
    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt)


class Waits(Grader):
    async def grade(self, ctx):
        await asyncio.Event().wait()


@pytest.mark.parametrize("transport", ["attach", "callback"])
@pytest.mark.row("SDK 66")
async def test_the_time_limit_of_a_grader_ends_the_grader(transport):
    workflow = WorkflowRunnable(Asks, None, Waits)
    async with (
        AgentServer([workflow], port=0) as server,
        Trainer([server.address], EchoPolicy(), transport=transport) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER], label="x", grader_timeout=0.2)
    assert (outcome.status, outcome.failure.reason) == (OutcomeStatus.DEADLINE_EXCEEDED, FailureReason.GRADER_TIMEOUT)
    assert list(outcome.samples) == ["main"]


@pytest.mark.row("SDK 66")
async def test_without_a_grader_timeout_the_servers_limit_for_agents_ends_the_grader():
    workflow, config = WorkflowRunnable(Asks, None, Waits), ServerConfig(agent_timeout=0.2)
    async with (
        AgentServer([workflow], port=0, config=config) as server,
        Trainer([server.address], EchoPolicy()) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER], label="x", agent_timeout=60.0)
    assert (outcome.status, outcome.failure.reason) == (OutcomeStatus.DEADLINE_EXCEEDED, FailureReason.GRADER_TIMEOUT)
    assert outcome.failure.message.startswith("the grader_timeout of 0.2 s ran out")


@pytest.mark.row("SDK 66")
async def test_a_time_limit_for_an_agent_without_a_grader_is_refused_by_name():
    async with AgentServer([CalculatorAgent()], port=0) as server, Trainer([server.address], EchoPolicy()) as trainer:
        with pytest.raises(InvalidArgument, match="has no grader") as refused:
            await trainer.rollout(rollout_id="r", messages=[USER], grader_timeout=1.0)
    assert refused.value.violations[0][0] == "spec.grader_timeout"
