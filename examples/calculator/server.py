"""A calculator agent. Serve it from this folder:

python -m osmosis_grpc.serve -m server:agent_loop
"""

from rewards import reward_of
from tools import TOOLS

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult


class CalculatorAgentLoop(RolloutAgentLoop):
    """Asks the model, runs the tools it calls, and ends when it calls none."""

    name = "calculator"
    tools = TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        finish_reason = "max_turns"
        for turn in range(ctx.request.max_turns):
            result = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(result.message)
            if not result.has_tool_calls:
                finish_reason = result.finish_reason or "stop"
                break
            messages.extend(await ctx.run_tools(result))
            ctx.log_event("tools_executed", turn=turn, calls=len(result.tool_calls))
        truth = ctx.request.label or ctx.request.metadata.get("ground_truth")
        return ctx.complete(messages, finish_reason=finish_reason, reward=reward_of(messages, truth))


agent_loop = CalculatorAgentLoop()
