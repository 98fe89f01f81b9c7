"""An agent that keeps the tokens of its replies, and writes debug events."""

import json
import time
from typing import Any

from osmosis_ai import osmosis_reward
from osmosis_ai.rollout import (
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    count_messages_by_role,
    normalize_stop,
)
from osmosis_ai.rollout.tools import create_tool_result, execute_tool_calls, get_tool_call_info

SEARCH = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


@osmosis_reward
def compute_reward(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:
    return 1.0 if ground_truth in solution_str else 0.0


class ResearchAgent(RolloutAgentLoop):
    name = "research"

    def get_tools(self, request: RolloutRequest) -> list:
        return [SEARCH]

    async def execute(self, tool_call: dict[str, Any]) -> dict[str, str]:
        call_id, _, args = get_tool_call_info(tool_call)
        return create_tool_result(call_id, str(args["a"] + args["b"]))

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        tokens: list[int] = []
        logprobs: list[float] = []
        params = dict(ctx.request.completion_params)
        params["stop"] = normalize_stop(params.get("stop"))
        for turn in range(ctx.request.max_turns):
            ctx.log_event("pre_llm", turn=turn, num_messages=len(messages), roles=count_messages_by_role(messages))
            result = await ctx.chat(messages, **params)
            messages.append(result.message)
            if result.token_ids:
                tokens = tokens + result.token_ids
                logprobs += result.logprobs
            ctx.log_event(
                "llm_response", turn=turn, has_tool_calls=result.has_tool_calls, finish_reason=result.finish_reason
            )
            if not result.has_tool_calls:
                break
            started = time.monotonic()
            answers = await execute_tool_calls(result.tool_calls, self.execute)
            ctx.record_tool_call(latency_ms=(time.monotonic() - started) * 1000)
            messages.extend(answers)
            ctx.log_event(event_type="tool_results", turn=turn, num_results=len(answers))
        truth = ctx.request.metadata.get("ground_truth")
        reward = compute_reward(messages[-1]["content"], truth) if truth else None
        if ctx.debug_enabled:
            ctx.log_event("rollout_complete", reward=reward, tokens=json.loads(json.dumps(tokens)))
        return ctx.complete(messages, reward=reward)


agent_loop = ResearchAgent()
