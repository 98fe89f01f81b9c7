"""Runs rollouts that show what the viewer has: failures, groups with and without variance, a slow tool, token drift.

`python -m osmosis_grpc.cli.view_demo FOLDER` writes them to a state folder. An agent server and a trainer with a
scripted model run in this process, over a real socket.
"""

import asyncio
import json
import sys
from pathlib import Path

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.server import AgentServer
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.types import ChatRequest, ChatResponse, Group, RolloutRequest, TokenBlock

POPULATIONS = {"Lisbon": 545_000, "Oslo": 709_000}
CITIES = {
    "mixed": ("Lisbon", "Lisbon", "Oslo", "Oslo"),
    "equal": ("Lisbon", "Lisbon", "Lisbon", "Lisbon"),
    "failing": ("Atlantis", "Lisbon", "Atlantis", "Oslo"),
}
"""The groups, and the city that the model looks up in each of their rollouts. The question is about Lisbon."""
QUESTION = "How many people live in Lisbon?"
DRIFTING = "demo-mixed-1"
"""In this rollout, the prompt of the second chat changes a token of the first reply."""


@tool
async def population(city: str) -> int:
    """Returns the number of people in a city."""
    return POPULATIONS[city]


@tool
async def search(query: str) -> str:
    """Searches slowly."""
    await asyncio.sleep(0.4)
    return f"pages about {query}"


class Geographer(RolloutAgentLoop):
    """Looks things up until the model has an answer. The reward is 1 for the true number."""

    name = "geographer"
    tools = (population, search)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = await ctx.tool_loop(ctx.request.messages)
        found = int(str(messages[-1]["content"]).removeprefix("People: "))  # raises without a number
        return ctx.complete(messages, reward=float(found == POPULATIONS["Lisbon"]))


async def policy(request: ChatRequest) -> ChatResponse:
    """Search, look up the city of the rollout, and answer with the number that the tool returned."""
    await asyncio.sleep(0.05)
    _, group, index = request.rollout_id.split("-")
    city = CITIES[group][int(index) - 1]
    calls = {1: ("search", {"query": "Lisbon"}), 2: ("population", {"city": city})}
    if request.chat_number in calls:
        name, arguments = calls[request.chat_number]
        call = {
            "id": f"call-{request.chat_number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        reply = {"role": "assistant", "content": "", "reasoning_content": f"I use {name}.", "tool_calls": [call]}
    else:
        reply = {"role": "assistant", "content": f"People: {request.messages[-1]['content']}"}
    if request.rollout_id != DRIFTING:
        return answer(request, reply, version="v1")
    prompt = {1: [1, 2, 3], 2: [1, 2, 3, 10, 99, 12, 20]}.get(
        request.chat_number, [1, 2, 3, 10, 99, 12, 20, 10, 11, 12, 30]
    )
    return ChatResponse(
        message=reply, prompt_ids=TokenBlock.of(prompt).ids, tokens=TokenBlock.of([10, 11, 12], [-0.05, -1.5, -0.2])
    )


async def write_demo(folder: Path) -> None:
    """Run the rollouts of all groups."""
    requests = [
        RolloutRequest(
            rollout_id=f"demo-{name}-{index + 1}",
            messages=[{"role": "user", "content": QUESTION}],
            group=Group(f"demo-{name}", index, len(cities)),
        )
        for name, cities in CITIES.items()
        for index in range(len(cities))
    ]
    async with (
        AgentServer([Geographer()], port=0, state_dir=folder) as server,
        Trainer([server.address], policy) as trainer,
    ):
        async for _ in trainer.run(requests):
            pass


if __name__ == "__main__":
    asyncio.run(write_demo(Path(sys.argv[1])))
