"""A Strands workflow behind POST /rollout: the grader callback has the messages in the format of Strands."""

import asyncio
import os

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.rollout import AgentWorkflow, Grader
from tests.legacy.old_controller import OldController
from tests.legacy.polling_client import PollingClient
from tests.legacy.test_controllers import multiplies, serving
from tests.ports import quiet_port
from tests.processes import serving as serve_process

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")


@strands.tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


class Solver(AgentWorkflow):
    replayable = True

    async def run(self, ctx):
        from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

        agent = OsmosisStrandsAgent(
            name="solver",
            model=OsmosisRolloutModel(params={"temperature": 1.0}),
            tools=[multiply],
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


class HasNumber(Grader):
    async def grade(self, ctx):
        (sample,) = ctx.get_samples().values()
        ctx.set_sample_reward(sample.id, float("6" in sample.messages[-1]["content"][0]["text"]))


def check(messages):
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == [{"text": "What is 2 * 3?"}]
    use, result = messages[1]["content"][0]["toolUse"], messages[2]["content"][0]["toolResult"]
    assert (use["name"], use["input"], result["toolUseId"]) == ("multiply", {"a": 2, "b": 3}, use["toolUseId"])
    assert (result["status"], result["content"]) == ("success", [{"text": "6.0"}])
    assert messages[3]["content"] == [{"text": "It is 6.0."}]


@pytest.mark.row("SDK 53", "SDK 80")
async def test_the_callback_has_the_messages_of_strands():
    async with serving(WorkflowRunnable(Solver, grader=HasNumber)) as (_, address), OldController(multiplies) as old:
        await old.start(address)
        _, graded = await old.ended()
        chats = [body["messages"] for _, _, body in old.chats]
    assert graded.samples["solver"].reward == 1.0
    check(graded.samples["solver"].messages)
    assert [[message["role"] for message in history] for history in chats] == [["user"], ["user", "assistant", "tool"]]


@pytest.mark.row("SDK 53", "SDK S15")
async def test_the_result_has_the_messages_of_strands():
    async with serving(WorkflowRunnable(Solver, grader=HasNumber)) as (_, address), PollingClient(multiplies) as client:
        result = await client.run(address)
    assert (result.status, result.sample.reward) == ("success", 1.0)
    check(result.sample.messages)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["chat.open:2", "result.committed"])
@pytest.mark.row("SDK 53", "SDK 80")
async def test_the_callback_of_a_restarted_server_has_the_messages_of_strands(place, tmp_path):
    port = str(quiet_port())
    line = ("-m", "tests.legacy.test_strands_callbacks:Solver", "--state-dir", str(tmp_path / "state"), "-p", port)
    async with OldController(multiplies) as old:
        with serve_process(*line, env=os.environ | {"OSMOSIS_FAILPOINT": place}) as (process, ready):
            await old.start(ready["http"])
            await asyncio.to_thread(process.wait, 30)
        with serve_process(*line):
            _, graded = await old.ended()
    check(graded.samples["solver"].messages)
