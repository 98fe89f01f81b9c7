"""A workflow of two Strands agents that continues after a restart of its server. One tool waits for a file."""

import asyncio
import os
from pathlib import Path

from strands import tool

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)
from tests.integrations.strands_policy import calls

GATE = "STRANDS_TEST_GATE"
"""Names a folder. The tool `wait` makes the file `waits` in it, and waits for the file `go`."""
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many letters?"}]


@tool
def letters(word: str) -> str:
    """Count the letters of a word."""
    return f"{word} has {len(word)}"


@tool
async def wait(word: str) -> str:
    """Wait."""
    gate = Path(os.environ[GATE])
    (gate / "waits").touch()
    while not (gate / "go").exists():
        await asyncio.sleep(0.01)  # a poll of the file system
    return f"waited for {word}"


@tool
async def ask_helper(word: str) -> str:
    """Ask another agent."""
    helper = OsmosisStrandsAgent(name="helper", model=OsmosisRolloutModel(), tools=[letters], callback_handler=None)
    return str(await helper.invoke_async(f"Count {word}."))


class Counts(AgentWorkflow):
    replayable = True

    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisStrandsAgent(
            name="main-agent",
            model=OsmosisRolloutModel(params={"temperature": 1.0}),
            tools=[letters, wait, ask_helper],
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


class Ends(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, float("done" in sample.messages[-1]["content"][-1]["text"]))


def reply(request):
    """Answer a chat. The reply depends on the sample and the number only."""
    if request.sample == "helper":
        made = [calls("letters", {"word": "milk"}, number=10), "The helper is done."]
    else:
        two = calls("letters", {"word": "tea"}, {"word": "tee"})
        made = [
            two,
            calls("ask_helper", {"word": "milk"}, number=2),
            calls("wait", {"word": "ale"}, number=3),
            "All done.",
        ]
    return answer(request, made[request.chat_number - 1])
