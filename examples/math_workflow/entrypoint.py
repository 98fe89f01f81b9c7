"""A Strands agent that calculates, and its grader. It needs the extra `strands`. Run these commands in this folder:

osmosis-grpc validate --run -m entrypoint.py
osmosis-grpc serve -m entrypoint.py --config math.toml

The request's messages have the question, and its label is the answer.
"""

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

from .arithmetic import evaluate


class MathConfig(AgentWorkflowConfig):
    """The configuration. math.toml and the request's metadata can change its values."""

    name: str = "math"
    temperature: float = 1.0
    system_prompt: str = "You are a math assistant. Use the calculator tool."


math_config = MathConfig()


@tool
def calculator(expression: str) -> str:
    """Evaluate a math expression, for example (2 + 3) * 4.

    Args:
        expression: Numbers, parentheses and the operators + - * / // % **.
    """
    return f"{evaluate(expression):.12g}"


class MathAgentWorkflow(AgentWorkflow[MathConfig]):
    """Lets the agent calculate until it answers."""

    async def run(self, ctx: AgentWorkflowContext[MathConfig]) -> None:
        """Run the agent on the prompt."""
        config = ctx.config or math_config
        agent = OsmosisStrandsAgent(
            name="math-agent",
            model=OsmosisRolloutModel(params={"temperature": config.temperature}),
            tools=[calculator],
            system_prompt=config.system_prompt,
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


class MathGrader(Grader):
    """Gives 1 for an answer that has the label as a word of its own, and otherwise 0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Reward each sample."""
        for sample_id, sample in ctx.samples.items():
            words = last_text(sample).replace("#", " ").rstrip(".").split()
            right = bool(ctx.label) and str(ctx.label).strip() in words
            ctx.set_sample_reward(sample_id, 1.0 if right else 0.0)


def last_text(sample: RolloutSample) -> str:
    """Return the text of the last message, which can be a text or a list of blocks."""
    content = sample.messages[-1].get("content", "") if sample.messages else ""
    if isinstance(content, str):
        return content
    return next((str(block["text"]) for block in content if isinstance(block, dict) and "text" in block), "")
