"""Workflows, graders and an agent loop for the controllers of POST /rollout."""

import asyncio
import os
from pathlib import Path
from typing import Any

from osmosis_grpc.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutAgentLoop,
    create_tool_result,
    get_rollout_context,
)

WAIT_VARIABLE = "LEGACY_TEST_WAIT"
"""Names a file for which the agents wait between their chats, if it is set."""


class Config(AgentWorkflowConfig):
    name: str = "sums"
    samples: tuple[str, ...] = ("solver",)


class Sums(AgentWorkflow[Config]):
    """Asks once for each sample. The metadata of the request says what is special."""

    async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
        metadata = ctx.metadata
        rollout = get_rollout_context()
        assert rollout is not None
        for name in metadata.get("samples", ("solver",)):
            await rollout.chat(ctx.prompt, sample=name, temperature=0.5)
            if "sleep" in metadata:
                await asyncio.sleep(metadata["sleep"])  # work of the agent
            if "raise" in metadata:
                raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[metadata["raise"]]("the agent broke")


class Contains(Grader[Any]):
    """Rewards a sample whose last message has the label."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.metadata.get("grader") == "broken":
            raise RuntimeError("the grader broke")
        if ctx.metadata.get("grader") == "slow":
            await asyncio.sleep(30)  # longer than the grader's time limit
        if ctx.metadata.get("grader") == "judge":
            context = get_rollout_context()
            assert context is not None
            await context.chat(ctx.prompt)
        for name, sample in ctx.get_samples().items():
            sample.metrics["length"] = len(sample.messages)
            if ctx.metadata.get("grader") == "forgets" and name == "second":
                continue
            if ctx.metadata.get("grader") == "removes" and name == "second":
                sample.remove_sample = True
                continue
            ctx.set_sample_reward(name, float(ctx.label is not None and ctx.label in str(sample.messages[-1])))


config = Config()


class Loop(RolloutAgentLoop):
    """Asks, runs one tool, and asks again."""

    name = "loop"
    replayable = True

    def get_tools(self, request: Any) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
        function = {"name": "multiply", "description": "Multiplies.", "parameters": parameters}
        return [{"type": "function", "function": function}]

    async def run(self, ctx: Any) -> Any:
        messages = list(ctx.request.messages)
        for turn in range(5):
            reply = await ctx.chat(messages)
            messages.append(reply.message)
            path = os.environ.get(WAIT_VARIABLE)
            while turn == 0 and path and not Path(path).exists():
                await asyncio.sleep(0.01)  # the test makes the file
            if not reply.has_tool_calls:
                break
            messages += [create_tool_result(call["id"], "6") for call in reply.tool_calls]
        return ctx.complete(messages, reward=float("6" in str(messages[-1]["content"])))
