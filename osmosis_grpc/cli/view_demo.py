"""Runs rollouts that show what the viewer can display: failures, group variance, a slow tool, token drift.

An agent server and a trainer with a scripted model run in this process, and talk over a real socket. The trainer
annotates the groups as a real training would.
"""

import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.cli.demo_tokens import Words, prompt_text, reply_text
from osmosis_grpc.protocol.types import (
    Annotation,
    ChatRequest,
    ChatResponse,
    Group,
    Message,
    RolloutOutcome,
    RolloutRequest,
    SegmentAnnotation,
    TokenBlock,
    VersionSpan,
)
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import Trainer

POPULATIONS = {"Lisbon": 545_000, "Oslo": 709_000}
CITIES = {
    "mixed": ("Lisbon", "Lisbon", "Oslo", "Oslo"),
    "equal": ("Lisbon", "Lisbon", "Lisbon", "Lisbon"),
    "failing": ("Atlantis", "Lisbon", "Atlantis", "Oslo"),
}
"""For each group, the city that the model looks up in each of its rollouts. The question is always about Lisbon."""
QUESTION = "How many people live in Lisbon?"
STEPS = {"mixed": 7, "equal": 8, "failing": 9}
"""The training step to which each group belongs."""
DRIFTING = "demo-mixed-1"
"""In this rollout, the later prompts encode a word of the first reply as two tokens."""
DRIFT = (" search", (" sea", "rch"))
CUT = "demo-failing-4"
"""A token limit cuts the last reply of this rollout."""
CUT_AT = 3
CONCURRENT = 6
"""This many rollouts run at once. The others wait in the queue."""
FLAG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAGAAAABACAIAAABqVuVZAAACFklEQVR4nO3RSW7DMAwFUJ0ki97/hFqljQBD0ciZlN0PLwIP1OdL"
    "yjm/Xj9xrhwpv33S9SvI5StSp/RJ/a1/oLpPWjx7JlDTpwUavvQQoGGfMdDs7RsDzfpMgdaf3Qlo3WcDtP3+dKBtnz0QcNBxQMA+"
    "UCD4xCOA4H0QQNjRMYGwfdBAhDPiABH6UIDIhzkCkfvQgTinGgNx+rCA+MdrA/H7CACJ9NAAEukjAyRYKE4TeSCRZhE6KALxK3qd"
    "awrE6Wp/og8QubTNKVGACO2154cDwq6hMfMAIPg+stNOAgIuxp9wNtB2Q863NwFar4p9/7ZAs53hb94faLj8+ukTgfK3wuz+o4FK"
    "aiB3l4hA+eOSI+n8Abk3qK/LKE4CAZVC9e8ICQFUF5rd94o/UFNo/dQ+nkDDQvA3beIGNCuEfV87DkDrQpxvNWINtC3EnyAbOyBg"
    "Idlp/BgBwQtpzOREHQhbSHs+NrpAhEI2p8CjBUQuZH/iOipAnEJe584iDMQvFKFDHUkgkUJxmpTIAAkWivaHCQCJ9LgiCCTSjQXE"
    "P76PLBC/Jx1ISqSJBhCnLQVIkKOPEhC5ORpIXKSJKhChPwJIg6OPNhB2FyiQnkgTGyD4RnsgVY4+ZkDA7TZABiJNjIG2O06BbDj6"
    "2AOt9x0DWYo08QKabd0CGXP0cQQaCqTFM5e4AzUOKQ5NibtOw5RC6eRIQEXmDdsLkkqCA/bzAAAAAElFTkSuQmCC"
)
"""The flag of Lisbon: eight wedges in black and white."""
NEW_WEIGHTS = 14
"""After this many replies, the model has the weights of the next step."""


@tool
async def population(city: str) -> int:
    """Return the number of people in a city."""
    return POPULATIONS[city]


@tool
async def search(query: str, pages: int) -> str:
    """Search slowly: a page takes 0.1 s."""
    await asyncio.sleep(0.1 * pages)
    return f"{pages} pages about {query}: it is a city by the sea, and has a tower, a castle and trams."


class Geographer(RolloutAgentLoop):
    """An agent that looks things up until the model has an answer. The reward is 1 for the right number."""

    name = "geographer"
    tools = (population, search)

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = await ctx.tool_loop(ctx.request.messages)
        found = int(str(messages[-1]["content"]).removeprefix("People: "))  # raises without a number
        ctx.log_event("found", number=found)
        return ctx.complete(messages, reward=float(found == POPULATIONS["Lisbon"]))


class Model:
    """A scripted model: search, look up the city of the rollout, and answer with the number that the tool returned."""

    def __init__(self, words: Words) -> None:
        self.replies = 0
        self._words = words

    async def __call__(self, request: ChatRequest) -> ChatResponse:
        _, group, index = request.rollout_id.split("-")
        city = CITIES[group][int(index) - 1]
        await asyncio.sleep(0.04 + 0.02 * int(index))
        self.replies += 1
        calls = {
            1: ("search", {"query": "Lisbon", "pages": 3}, "I do not know the city, so I search first."),
            2: ("population", {"city": city}, f"The pages may be old. The tool has the number of {city}."),
        }
        if request.chat_number in calls:
            name, arguments, thought = calls[request.chat_number]
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call-{request.chat_number}", "type": "function", "function": function}
            reply = {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]}
        else:
            reply = {"role": "assistant", "content": f"People: {request.messages[-1]['content']}"}
        return self._sampled(request, reply)

    def _sampled(self, request: ChatRequest, reply: Message) -> ChatResponse:
        prompt, ids = self._words.encode(prompt_text(request.messages)), self._words.encode(reply_text(reply))
        finish_reason = "tool_calls" if reply.get("tool_calls") else "stop"
        if request.rollout_id == CUT and finish_reason == "stop":
            ids, finish_reason = ids[:CUT_AT], "length"
            reply = {**reply, "content": "".join(self._words.of(ids))}
        if request.rollout_id == DRIFTING and request.chat_number > 1:
            (word,), parts = self._words.encode(DRIFT[0]), [self._words.encode(part)[0] for part in DRIFT[1]]
            at = prompt.index(word)
            prompt[at : at + 1] = parts
        dice = random.Random(f"{request.rollout_id} {request.chat_number}")
        logprobs = [-min(6.0, dice.expovariate(4.0)) for _ in ids]
        return ChatResponse(
            message=reply,
            finish_reason=finish_reason,
            tokens=TokenBlock.of(ids, logprobs),
            prompt_ids=TokenBlock.of(prompt).ids,
            versions=(VersionSpan("7" if self.replies <= NEW_WEIGHTS else "8", len(ids)),),
        )


def question(group: str) -> list[Message]:
    """Return the messages of a group's rollouts. One group has a picture."""
    if group != "equal":
        return [{"role": "user", "content": QUESTION}]
    picture = {"type": "image_url", "image_url": {"url": FLAG}}
    return [{"role": "user", "content": [{"type": "text", "text": f"This is its flag. {QUESTION}"}, picture]}]


async def annotate(trainer: Trainer, number: int, outcomes: Sequence[RolloutOutcome]) -> None:
    """Annotate a group as a training step would: with advantages, or with the reason for which it is dropped."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    spread = statistics.pstdev(rewards)
    step = Annotation(id=f"step-{number}", author="demo-trainer", weight_step=f"{number}")
    for outcome in outcomes:
        if outcome.reward is None or not spread:
            why = "it failed" if outcome.reward is None else "all rewards of its group are equal"
            await trainer.annotate(outcome, replace(step, trained=False, dropped_reason=why))
            continue
        segments = tuple(
            SegmentAnnotation(
                index=at,
                logprobs=segment.logprobs - 0.02 * (segment.logprobs**2),
                entropies=abs(segment.logprobs) * 0.8 + 0.1,
            )
            for at, segment in enumerate(outcome.samples["main"].segments)
        )
        advantage = (outcome.reward - statistics.fmean(rewards)) / spread
        await trainer.annotate(outcome, replace(step, trained=True, advantage=advantage, segments=segments))


async def write_demo(folder: Path) -> Words:
    """Run the rollouts of all groups, and return the tokenizer with the texts of their tokens."""
    words = Words()
    requests = [
        RolloutRequest(
            rollout_id=f"demo-{name}-{index + 1}",
            messages=question(name),
            label=str(POPULATIONS["Lisbon"]),
            group=Group(f"demo-{name}", index, len(cities)),
        )
        for name, cities in CITIES.items()
        for index in range(len(cities))
    ]
    config = ServerConfig(max_concurrent=CONCURRENT, max_queued=len(requests))
    outcomes = {}
    async with (
        AgentServer([Geographer()], port=0, state_dir=folder, config=config) as server,
        Trainer([server.address], Model(words)) as trainer,
    ):
        async for outcome in trainer.run(requests):
            outcomes[outcome.rollout_id] = outcome
        for name, cities in CITIES.items():
            group = [outcomes[f"demo-{name}-{index + 1}"] for index in range(len(cities))]
            await annotate(trainer, STEPS[name], group)
    return words
