"""The agents of the kill loop: `python -m osmosis_grpc.serve -m tests.faults.kill_loop.agents:agents`.

Each question depends on the earlier messages only. Each rollout has two conversations at a time, one of them with
tools; every step of it is a line of the history.
"""

import asyncio
import json
import os
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.agent.tool_calls import create_tool_result, execute_tool_calls, get_tool_call_info
from osmosis_grpc.protocol.types import RolloutRequest
from tests.faults.kill_loop.history import VARIABLE, History

MAIN_CHATS, ASIDE_CHATS = 6, 2
CHATS = MAIN_CHATS + ASIDE_CHATS
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}

_path = os.environ.get(VARIABLE)
history = History(_path, "server") if _path else None


class Passenger(RolloutAgentLoop):
    """Ends where its server ends."""

    name = "passenger"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return [TOOL]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        rollout_id = ctx.request.rollout_id
        _note("run", rollout_id, self.name)
        messages: list[Any] = list(ctx.request.messages)
        aside: asyncio.Task[str] | None = None
        try:
            for number in range(1, MAIN_CHATS + 1):
                if number == 2:
                    aside = asyncio.create_task(self._aside(ctx, str(messages[-1])))
                reply = await _chat(ctx, messages, "main", number)
                messages.append(reply.message)
                messages += await execute_tool_calls(reply.tool_calls, _add)
                if not reply.has_tool_calls:
                    messages.append({"role": "user", "content": f"and then, after {number}?"})
            assert aside is not None
            messages.append({"role": "user", "content": await aside})
        finally:
            if aside is not None:
                aside.cancel()
        reward = float(sum(len(json.dumps(message)) for message in messages) % 1000)
        result = ctx.complete(messages, reward=reward)
        _note("returned", rollout_id)
        return result

    async def _aside(self, ctx: RolloutContext, about: str) -> str:
        """A conversation of its own, beside the main one."""
        messages: list[Any] = [{"role": "user", "content": f"what of this: {about}"}]
        for number in range(1, ASIDE_CHATS + 1):
            reply = await _chat(ctx, messages, "aside", number)
            messages += [reply.message, {"role": "user", "content": f"go on: {reply.content}"}]
        return str(messages[-1]["content"])


class Traveller(Passenger):
    """Goes on at the server's next start."""

    name = "traveller"
    replayable = True


async def _chat(ctx: RolloutContext, messages: list[Any], sample: str, number: int) -> Any:
    rollout_id = ctx.request.rollout_id
    _note("asked", rollout_id, sample, number)
    reply = await ctx.chat(messages, sample=sample)
    seen = reply.content or reply.tool_calls[0]["id"]
    _note("got", rollout_id, sample, number, outcome=f"{reply.extra.get('draw')} {seen}")
    return reply


async def _add(call: Any) -> Any:
    call_id, _, numbers = get_tool_call_info(call)
    await asyncio.sleep(0.001)  # a tool takes a moment
    return create_tool_result(call_id, str(numbers["a"] + numbers["b"]))


def _note(op: str, rollout_id: str, *key: Any, outcome: Any = None) -> None:
    if history is not None:
        history.note(op, rollout_id, *key, outcome=outcome)


agents = [Passenger(), Traveller()]
