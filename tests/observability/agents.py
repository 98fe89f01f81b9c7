"""An agent that ends as its rollout's id begins, and a trainer of it."""

import asyncio

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.tool_calls import create_tool_result, execute_tool_calls
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.trainer import RolloutRequest

USER = {"role": "user", "content": "Go."}
PATIENCE = 20.0


def tool(name):
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}


def call(name, number=1):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}


class Mixed(RolloutAgentLoop):
    """Chats; runs the tools that the reply asks for; ends as its rollout's id begins."""

    name = "mixed"

    def __init__(self, tools=("add", "search")):
        self.tools = list(tools)
        self.gate = asyncio.Event()
        self.waiting = 0

    def get_tools(self, request):
        return [tool(name) for name in self.tools]

    async def run(self, ctx):
        kind = ctx.request.rollout_id.partition("-")[0]
        messages = list(ctx.request.messages)
        reply = await ctx.chat(messages)
        messages.append(reply.message)
        if reply.has_tool_calls:
            messages += await execute_tool_calls(reply.tool_calls, self.execute)
        if kind == "raises":
            raise KeyError(ctx.request.rollout_id)
        if kind == "tool":
            raise ToolExecutionError(f"no tool for {ctx.request.rollout_id}")
        if kind == "hangs":
            await asyncio.sleep(3600)
        if kind == "waits":
            self.waiting += 1
            await self.gate.wait()
        finish = f"a reason of {ctx.request.rollout_id}" if kind == "odd" else "stop"
        reward = float(ctx.request.label) if ctx.request.label else None
        return ctx.complete(messages, finish_reason=finish, reward=reward)

    async def execute(self, asked):
        return create_tool_result(asked["id"], "done")


def policy(request):
    """Calls the tools that the question names, separated by blanks."""
    names = request.messages[0]["content"].split() if request.messages[0]["content"] != "Go." else []
    reply = {"role": "assistant", "content": "fine"}
    if names:
        reply["tool_calls"] = [call(name, number) for number, name in enumerate(names)]
    return answer(request, reply, tokens=3)


def request(rollout_id, tools="", **fields):
    """A request of which no id and no label value may come out."""
    messages = [{"role": "user", "content": tools}] if tools else [USER]
    return RolloutRequest(rollout_id=rollout_id, messages=messages, **fields)


async def run_all(trainer, requests):
    async with asyncio.timeout(600):
        return [outcome async for outcome in trainer.run(requests, max_in_flight=64)]
