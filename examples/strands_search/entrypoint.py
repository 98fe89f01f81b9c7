"""A Strands agent that searches a small library, and its grader. Serve it from this folder:

osmosis-grpc serve -m entrypoint.py

The request's messages have the question, and its label is the answer.
"""

from typing import Any

from strands import tool

from osmosis_grpc.agent import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutSample,
)
from osmosis_grpc.integrations.strands import OsmosisRolloutModel, OsmosisStrandsAgent

LIBRARY = {
    "Rivers of Norway": "The Glomma is the longest river of Norway. It is 621 km long.",
    "Rivers of Portugal": "The Tagus is the longest river of Portugal. It flows into the sea at Lisbon.",
    "Bridges of Lisbon": "The Vasco da Gama Bridge crosses the Tagus. It was opened in 1998.",
}


@tool(name="search")
def search_tool(query: str) -> str:
    """Return the pages of the library that have a word of the query.

    Args:
        query: Words to look for.
    """
    words = query.lower().split()
    found = [f"{title}: {text}" for title, text in LIBRARY.items() if any(word in text.lower() for word in words)]
    return "\n".join(found) or "nothing found"


class SearchWorkflowConfig(AgentWorkflowConfig):
    """The configuration of the workflow."""

    name: str = "search-workflow"
    model: Any
    tools: Any
    max_rounds: int = 8


search_workflow_config = SearchWorkflowConfig(
    model=OsmosisRolloutModel(params={"temperature": 1.0}), tools=[search_tool]
)


class SearchWorkflow(AgentWorkflow[SearchWorkflowConfig]):
    """Lets the agent search until its reply calls no tool."""

    async def run(self, ctx: AgentWorkflowContext[SearchWorkflowConfig]) -> None:
        """Run the agent on the prompt."""
        config = ctx.config or search_workflow_config
        agent = OsmosisStrandsAgent(
            name="search-agent",
            model=config.model,
            tools=config.tools,
            system_prompt="Answer with one word or number. Search the library first.",
            messages=ctx.prompt,
            callback_handler=None,
        )
        for _ in range(config.max_rounds):
            result = await agent.invoke_async()
            if not any("toolUse" in block for block in result.message["content"]):
                break


class AnswerGrader(Grader):
    """Rewards an answer that has the label. Half of the reward is for searching at all."""

    async def grade(self, ctx: GraderContext) -> None:
        """Reward each sample."""
        for name, sample in ctx.get_samples().items():
            searched = any("toolUse" in block for block in blocks(sample))
            right = bool(ctx.label) and str(ctx.label) in answer(sample)
            ctx.set_sample_reward(name, 0.5 * searched + 0.5 * right)


def blocks(sample: RolloutSample) -> list[dict[str, Any]]:
    """Return the blocks of all messages."""
    return [block for message in sample.messages for block in message["content"]]


def answer(sample: RolloutSample) -> str:
    """Return the text of the last message."""
    return "".join(str(block.get("text", "")) for block in sample.messages[-1]["content"])
