"""Rollouts to look at: a server process with a journal, and the ends and the texts that a person meets.

good: tools, reasoning, two samples, rewards. bad: its agent fails on the result of a tool. evil: texts with terminal
escape sequences. stuck: hangs in a tool.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, events
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer

AGENTS = """
import asyncio
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.rollout.tools import create_tool_result, execute_tool_calls

def tool(name):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}

def read(text):
    if text.startswith("no such"):
        raise LookupError(f"cannot read {text!r}")
    return text

class Traveller(RolloutAgentLoop):
    name = "traveller"
    def get_tools(self, request):
        return [tool("weather"), tool("forever")]
    async def execute(self, call):
        if call["function"]["name"] == "forever":
            await asyncio.sleep(3600)
        if "Atlantis" in call["function"]["arguments"]:
            return create_tool_result(call["id"], "no such city: Atlantis")
        if "evil" in call["function"]["arguments"]:
            return create_tool_result(call["id"], "\\x1b[2J\\x1b]0;owned\\x07\\x9b31mred\\u202e")
        return create_tool_result(call["id"], "sunny, 21 degrees\\n" * 20)
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(4):
            reply = await ctx.chat(messages, temperature=0.5)
            messages.append(reply.message)
            results = await execute_tool_calls(reply.tool_calls, self.execute)
            messages += results
            for result in results:
                read(result["content"])
            if not reply.has_tool_calls:
                break
        if ctx.request.rollout_id == "good":
            ctx.add_sample("critic", parent=("main", 1), train=False)
            await ctx.chat([{"role": "user", "content": "Is it right?"}], sample="critic")
            ctx.set_reward(0.5, sample="critic")
            ctx.set_reward(1.0, name="format")
            ctx.log_event("graded", by="hand")
        return ctx.complete(messages, reward=1.0)
"""
QUESTION = [{"role": "system", "content": "You know the weather."}, {"role": "user", "content": "How is Paris?"}]
THOUGHT = "The user asks for the weather.\nI have a tool for that, and I call it with the name of the city."
EVIL = "\x1b[2J\x1b]0;owned\x07 \x9b31m hidden\u202e text \x1b[8m"


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A server that runs, and its folder."""

    folder: Path
    """Where agents.py and the state folder `state` are."""
    address: str

    def options(self, kind: str) -> tuple[str, str]:
        """Return the options that name the server or the state folder."""
        return "--from", self.address if kind == "server" else str(self.folder / "state")


def _call(name: str, arguments: str, number: int) -> dict:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


async def policy(request: ChatRequest) -> ChatResponse:
    """Answer the chats of all rollouts."""
    if request.sample == "critic":
        return answer(request, "It is right.")
    if request.chat_number > 2 or (request.chat_number == 2 and request.rollout_id not in ("bad", "good")):
        return answer(request, EVIL if request.rollout_id == "evil" else "It is sunny in Paris.")
    city = "Atlantis" if request.rollout_id == "bad" and request.chat_number == 2 else "Paris"
    calls = [_call("weather", f'{{"city": "{city}"}}', request.chat_number)]
    if request.rollout_id == "evil":
        calls = [_call("weather", '{"city": "evil \\u001b[2J"}', 1), _call("\x1b[31mred", "\x1b[2J", 2)]
    if request.rollout_id.startswith("stuck"):
        calls = [_call("forever", "{}", 1)]
    content = EVIL if request.rollout_id == "evil" else None
    message = {"role": "assistant", "content": content, "reasoning_content": THOUGHT, "tool_calls": calls}
    return answer(request, message)


@contextlib.asynccontextmanager
async def recorded(address: str, *names: str) -> AsyncIterator[RolloutClient]:
    """Run the named rollouts on a server, and wait for their ends. `stuck` is waited for until it hangs in its tool."""
    async with CallbackTrainer(policy) as trainer, RolloutClient(address) as client:
        for name in names:
            await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback(), label="sunny")
        for name in names:
            if not name.startswith("stuck"):
                await trainer.outcome(name, timeout=30)
            async with contextlib.aclosing(client.events(name)) as trail:
                async for event in trail:
                    if name.startswith("stuck") and isinstance(event.kind, events.ToolCalled):
                        break
        yield client


def record(address: str, *names: str) -> None:
    """Run the named rollouts on a server; see recorded()."""

    async def run() -> None:
        async with recorded(address, *names):
            return

    asyncio.run(run())


def write_agents(folder: Path) -> None:
    """Write the agents' module."""
    (folder / "agents.py").write_text(AGENTS)
