"""An agent that calculates with two tools."""

import json
from typing import Any, Dict, List

from osmosis_ai.rollout import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    create_app,
)
from osmosis_ai.rollout.tools import create_tool_result, execute_tool_calls, get_tool_call_info, serialize_tool_result


def number_tool(name: str, description: str) -> OpenAIFunctionToolSchema:
    number = OpenAIFunctionPropertySchema(type="number", description="A number.")
    return OpenAIFunctionToolSchema(
        type="function",
        function=OpenAIFunctionSchema(
            name=name,
            description=description,
            parameters=OpenAIFunctionParametersSchema(
                type="object", properties={"a": number, "b": number}, required=["a", "b"]
            ),
        ),
    )


TOOLS = [number_tool("add", "Add two numbers."), number_tool("divide", "Divide a by b.")]


async def execute_tool(tool_call: Dict[str, Any]) -> Dict[str, str]:
    """Raises whatever the calculation raises."""
    call_id, name, args = get_tool_call_info(tool_call)
    result = args["a"] + args["b"] if name == "add" else args["a"] / args["b"]
    return create_tool_result(call_id, serialize_tool_result(result))


class CalculatorAgent(RolloutAgentLoop):
    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> List[OpenAIFunctionToolSchema]:
        return TOOLS

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        finish_reason = "max_turns"
        total_tokens = 0
        for _ in range(ctx.request.max_turns):
            result = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(result.message)
            total_tokens += result.usage.get("completion_tokens", 0)
            if total_tokens >= ctx.request.max_tokens_total:
                finish_reason = "max_tokens"
                break
            if not result.has_tool_calls:
                finish_reason = result.finish_reason
                break
            try:
                messages.extend(await execute_tool_calls(result.tool_calls, execute_tool))
            except ZeroDivisionError as error:
                return ctx.error(f"calculation failed: {error}", final_messages=messages)
            for _ in result.tool_calls:
                ctx.record_tool_call(latency_ms=1.0)
        return ctx.complete(messages, finish_reason=finish_reason, reward=self.reward(messages, ctx.request))

    @staticmethod
    def reward(messages: List[Dict[str, Any]], request: RolloutRequest) -> float | None:
        truth = request.metadata.get("ground_truth")
        return None if truth is None else float(str(truth) in (messages[-1].get("content") or ""))


def describe(agent: RolloutAgentLoop, request: RolloutRequest) -> str:
    return json.dumps([tool.model_dump(exclude_none=True) for tool in agent.get_tools(request)])


agent_loop = CalculatorAgent()
app = create_app(agent_loop)
