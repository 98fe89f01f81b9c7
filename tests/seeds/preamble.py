"""The names that the pages use in their blocks without defining them there.

Every block runs in a fresh copy of this file's namespace. First what a block forgets to import,
then what a page leaves to its reader.
"""
# ruff: noqa: F401 - the blocks use the imports

from osmosis_grpc.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult, create_app
from osmosis_grpc.rollout.tools import ToolArgumentError, create_tool_result, execute_tool_calls, get_tool_call_info
from osmosis_grpc.testing.calculator import TOOLS as CALCULATOR_TOOLS
from osmosis_grpc.testing.calculator import agent_loop

# seed 000: tools.py and rewards.py, which the page keeps elsewhere

CALCULATOR_TOOL_SCHEMAS = [tool.openai_schema() for tool in CALCULATOR_TOOLS]


async def execute(tool_call):
    call_id, name, arguments = get_tool_call_info(tool_call)
    (tool,) = [tool for tool in CALCULATOR_TOOLS if tool.name == name]
    return create_tool_result(call_id, str(await tool(**arguments)))


async def execute_tools(tool_calls):
    return await execute_tool_calls(tool_calls, execute)


def compute_reward(elided):
    assert elided is ..., "the page writes compute_reward(...)"
    return 1.0


# seed 001: a search, one reply's tool calls, hooks, and a reward

tool_calls = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "search", "arguments": '{"query": "six"}'}}
    for i in range(2)
]
hooks_called = []


async def do_search(query):
    return {"query": query, "hits": 6}


async def async_startup_fn():
    hooks_called.append("startup")


async def async_shutdown_fn():
    hooks_called.append("shutdown")


def compute_reward_from_messages(messages, metadata):
    return float(messages[-1]["content"] == metadata["ground_truth"])


# seed 001: the part of a bare `run` that the page writes as "# ... agent loop logic ..."


async def agent_loop_logic(ctx):
    result = await ctx.chat(ctx.request.messages)
    return {
        "messages": [*ctx.request.messages, result.message],
        "result": result,
        "finish_reason": result.finish_reason,
        "reward": 1.0,
    }
