"""An agent with tools, and a workflow with a grader."""

import asyncio

from osmosis_grpc.agent import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    SyncRolloutContext,
    get_rollout_context,
    tool,
)


@tool
async def add(a: float, b: float) -> float:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    await asyncio.sleep(0)
    return a + b


@tool(name="lookup", timeout=5)
def look_up(name: str, ctx: SyncRolloutContext) -> dict[str, str]:
    """Look a name up."""
    ctx.log_event("looked", name=name)
    return {"name": name}


class Adder(RolloutAgentLoop):
    """Lets the model add."""

    name = "adder"
    tools = (add, look_up)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run one rollout."""
        total: float = await add(1.0, 2.0)
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            reply = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                break
            messages.extend(await ctx.run_tools(reply))
        return ctx.complete(messages, reward=1.0 if str(int(total)) in str(messages[-1].get("content")) else 0.0)


class Chooser(RolloutAgentLoop):
    """Chooses its tools for each rollout."""

    name = "chooser"

    def get_tools(self, request: RolloutRequest) -> list[object]:
        """Return the tools of a rollout."""
        return [add] if request.metadata.get("adds") else []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run one rollout."""
        return ctx.complete(await ctx.tool_loop(ctx.request.messages))


class PlainWorkflow(AgentWorkflow):
    """A workflow without a configuration of its own."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """Run one rollout."""
        rollout = get_rollout_context()
        assert rollout is not None
        await rollout.chat(ctx.prompt)


class Settings(AgentWorkflowConfig):
    """What can be set."""

    name: str = "answer"
    temperature: float = 1.0


class Workflow(AgentWorkflow[Settings]):
    """A workflow with one."""

    async def run(self, ctx: AgentWorkflowContext[Settings]) -> None:
        """Run one rollout."""
        rollout = get_rollout_context()
        assert rollout is not None
        await rollout.chat(ctx.prompt, temperature=ctx.config.temperature if ctx.config else 1.0)


class Judge(Grader):
    """Gives a reward."""

    async def grade(self, ctx: GraderContext) -> None:
        """Grade the samples."""
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, 1.0 if sample.messages else 0.0)


agent_loop = Adder()
