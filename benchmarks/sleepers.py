"""Agents that sleep: `python -m osmosis_grpc.serve -m benchmarks.sleepers:agent_loops`."""

import asyncio
import importlib
import importlib.util
import time
from typing import Any

from osmosis_grpc.rollout import RolloutAgentLoop, RolloutContext, RolloutResult, SyncRolloutContext, tool

PAUSE = 0.1
"""The seconds of a turn's pause."""
LONG = 5.0
"""The seconds of a pause in whose middle a rollout is cancelled."""


@tool
async def waits() -> str:
    """Waits on the event loop."""
    await asyncio.sleep(LONG)
    return ""


@tool
def blocks() -> str:
    """Blocks a thread."""
    time.sleep(LONG)
    return ""


class AsyncTurns(RolloutAgentLoop):
    """Asks for `max_turns` replies, and awaits a pause after each."""

    name = "async turns"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            messages.append((await ctx.chat(messages)).message)
            await asyncio.sleep(PAUSE)
        return ctx.complete(messages)


class SyncTurns(RolloutAgentLoop):
    """Does the same on a thread."""

    name = "sync turns"

    def run(self, ctx: SyncRolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            messages.append(ctx.chat(messages).message)
            time.sleep(PAUSE)
        return ctx.complete(messages)


class InThread(RolloutAgentLoop):
    """Asks for a reply, and then blocks its thread."""

    name = "thread"

    def run(self, ctx: SyncRolloutContext) -> RolloutResult:
        reply = ctx.chat(ctx.request.messages)
        time.sleep(LONG)
        return ctx.complete([*ctx.request.messages, reply.message])


class InTool(RolloutAgentLoop):
    """Asks for a reply, and then calls the tool that the request's label names."""

    name = "tool"
    tools = (waits, blocks)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        reply = await ctx.chat(ctx.request.messages)
        call = {"id": "c", "type": "function", "function": {"name": ctx.request.label, "arguments": "{}"}}
        await ctx.run_tools({"role": "assistant", "tool_calls": [call]})
        return ctx.complete([*ctx.request.messages, reply.message])


async def _asks(task: Any, client: Any) -> None:
    """Sends two requests to the base URL. The trainer does not answer the second one."""
    messages = task.messages
    reply = await client.chat.completions.create(model="policy", messages=messages)
    messages = [*messages, reply.choices[0].message, {"role": "user", "content": "go on"}]
    await client.chat.completions.create(model="policy", messages=messages)


agent_loops: list[Any] = [AsyncTurns(), SyncTurns(), InThread(), InTool()]
if importlib.util.find_spec("openai"):
    agent_loops.append(importlib.import_module("osmosis_grpc.integrations.openai").rollout_agent("request")(_asks))
