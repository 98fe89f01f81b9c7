"""A recorded rollout is graded again with the messages that its grader got."""

import pytest

from osmosis_grpc.agent.grading import grade_recorded
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.integrations._strands_messages import recorded_samples
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_grpc.testing import collect_rollout
from tests.integrations.strands_policy import Replies, calls

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
BLOCKS = {"role": "assistant", "content": [{"text": "5"}]}


class ByBlocks(Grader):
    """Counts the results of tools in the blocks of Strands' messages."""

    def __init__(self, config=None):
        self.seen = seen

    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            blocks = [block for message in sample.messages for block in message["content"]]
            self.seen.append([(message["role"], message["content"]) for message in sample.messages])
            ctx.set_sample_reward(name, float(sum("toolResult" in block for block in blocks)))


seen: list = []


async def test_the_format_of_an_agents_messages_is_recorded():
    class Registered:
        message_format = "strands"
        messages = (BLOCKS,)

    class Mixed(AgentWorkflow):
        async def run(self, ctx):
            get_rollout_context().register_agent("native", Registered())
            for sample in ("native", "plain"):
                await get_rollout_context().chat(ctx.prompt, sample=sample)

    outcome, trail = await collect_rollout(Mixed, Replies("5"), QUESTION)
    samples = recorded_samples(outcome, trail)
    assert samples["native"] == [{"role": "user", "content": [{"text": "What is 2 + 3?"}]}, BLOCKS]
    assert samples["plain"] == [*QUESTION, {"role": "assistant", "content": "5"}]


@pytest.mark.adapters
async def test_a_strands_rollout_is_graded_again_with_equal_messages():
    strands = pytest.importorskip("strands")
    from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

    @strands.tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    class Adds(AgentWorkflow):
        async def run(self, ctx):
            agent = OsmosisStrandsAgent(
                name="agent", model=OsmosisRolloutModel(), tools=[add], messages=ctx.prompt, callback_handler=None
            )
            await agent.invoke_async()

    policy = Replies(calls("add", {"a": 2, "b": 3}, {"a": 1, "b": 1}), "5")
    outcome, trail = await collect_rollout(WorkflowRunnable(Adds, None, ByBlocks), policy, QUESTION, label="5")
    assert (outcome.failure, outcome.reward) == (None, 2.0)
    request = RolloutRequest(rollout_id="r1", messages=QUESTION, label="5")
    graded = await grade_recorded(ByBlocks, request, recorded_samples(outcome, trail))
    assert dict(graded.rewards) == {"agent": 2.0}
    assert seen[-1] == seen[-2]
