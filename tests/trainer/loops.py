"""Generated agent loops: what they pass to ctx.chat, what a trainer must see of it, and three transports to one agent.

A plan is a list of steps that an agent follows, keeping a history per sample. It writes down
what it passed with every chat, so that what a policy was asked can be compared with it.
"""

import asyncio
import copy
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import UnknownChat
from osmosis_grpc.protocol.types import ChatPurpose, TokenBlock, VersionSpan
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutClient, Trainer
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.callback_trainer import CallbackTrainer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
OWN = [{"type": "function", "function": {"name": "other"}, "x": None}]
JUDGE, POLICY = ChatPurpose.JUDGE, ChatPurpose.POLICY
PATIENCE = 3.0
SAMPLES = ["main", "main", "main", "second", "third"]


@dataclass(frozen=True)
class Ask:
    """One chat: `new` messages are added to the sample's history, then the reply."""

    sample: str
    new: tuple[str, ...]
    judge: bool = False
    tools_overridden: bool = False
    temperature: float | None = None


@dataclass(frozen=True)
class Rewind:
    """The history is cut to `keep` of its messages (mod its length)."""

    sample: str
    keep: int


@dataclass(frozen=True)
class Edit:
    """One message of the history is changed in place."""

    sample: str
    at: int
    content: object


@dataclass(frozen=True)
class Together:
    """Chats at the same time, each on its own copy of the history; the sample goes on from the last one."""

    asks: tuple[Ask, ...]


CONTENTS = st.sampled_from(["a", "b", 1, 1.0, True, None, [{"type": "text", "text": "p"}], "größer"])
ASKS = st.builds(
    Ask,
    st.sampled_from(SAMPLES),
    st.lists(st.sampled_from(["x", "y", "z"]), max_size=2).map(tuple),
    judge=st.sampled_from([False, False, False, True]),
    tools_overridden=st.sampled_from([False, False, True]),
    temperature=st.sampled_from([None, None, 0.5]),
)
ALONE = st.one_of(
    ASKS,
    ASKS,
    ASKS,
    st.builds(Rewind, st.sampled_from(SAMPLES), st.integers(0, 12)),
    st.builds(Edit, st.sampled_from(SAMPLES), st.integers(0, 12), CONTENTS),
)
FIRST = Ask("main", ("go",))
"""Begins every plan: a sample that only a judge was asked in has a test of its own."""
LOOPS = st.lists(ALONE, max_size=9).map(lambda steps: [FIRST, *steps])
CROWD = st.builds(Together, st.lists(ASKS, min_size=2, max_size=4).map(tuple))
CROWDED = st.lists(st.one_of(ALONE, CROWD), min_size=1, max_size=7).map(lambda steps: [FIRST, *steps])
ODDITIES = st.dictionaries(
    st.integers(1, 6),
    st.sampled_from(["drift", "short", "prefix", "no prompt", "no tokens", "no logprobs", "versions"]),
    max_size=3,
)


class Planned(RolloutAgentLoop):
    """Follows the plans by rollout id."""

    name = "planned"

    def __init__(self):
        self.plans, self.passed, self.final = {}, {}, {}

    def get_tools(self, request):
        return TOOLS

    async def run(self, ctx):
        histories, asked = {}, {}
        passed = self.passed[ctx.request.rollout_id] = {}

        async def chat(ask, history):
            number = asked[ask.sample] = asked.get(ask.sample, 0) + 1
            passed[ask.sample, number] = (copy.deepcopy(history), ask)
            more = {"tools": OWN} if ask.tools_overridden else {}
            if ask.temperature is not None:
                more["temperature"] = ask.temperature
            got = await ctx.chat(history, sample=ask.sample, purpose=JUDGE if ask.judge else POLICY, **more)
            history.append(got.message)

        for step in self.plans[ctx.request.rollout_id]:
            asks = step.asks if isinstance(step, Together) else (step,)
            running = []
            for one in asks:
                history = histories.setdefault(one.sample, [])
                if isinstance(one, Rewind):
                    del history[one.keep % (len(history) + 1) :]
                elif isinstance(one, Edit) and history:
                    at = one.at % len(history)
                    history[at] = history[at] | {"content": one.content}
                elif isinstance(one, Ask):
                    history = histories[one.sample] = copy.deepcopy(history)
                    history += [{"role": "user", "content": text, "n": 1} for text in one.new]
                    running.append(chat(one, history))
            await asyncio.gather(*running)
        final = histories.get("main", [])
        self.final[ctx.request.rollout_id] = copy.deepcopy(final)
        return ctx.complete(final, reward=0.5)


class Sampler:
    """A policy, the same at every transport: few different replies, and now and then something odd with the tokens."""

    def __init__(self):
        self.odd, self.asked, self.replies, self.waits = {}, {}, {}, ()

    def begin(self, odd, waits=()):
        self.odd, self.waits = odd, waits
        self.asked, self.replies = {}, {}

    def __call__(self, request):
        key = (request.sample, request.chat_number)
        assert key not in self.asked, "sampled twice"
        self.asked[key] = replace(request, messages=copy.deepcopy(list(request.messages)))
        made = answer(request, ["yes", "no"][request.chat_number % 2])
        odd = self.odd.get(request.chat_number)
        prompt, known = made.prompt_ids, request.known_ids
        if odd == "drift" and len(prompt):
            prompt = prompt.copy()
            prompt[len(prompt) // 2] += 1
        if odd == "short":
            prompt = prompt[: len(prompt) // 2]
        if odd == "no prompt":
            made = replace(made, prompt_ids=None)
        elif odd == "prefix" and known is not None:
            made = replace(made, prompt_ids=prompt[len(known) :], prompt_prefix=len(known))
        else:
            made = replace(made, prompt_ids=prompt)
        if odd == "no tokens":
            made = replace(made, tokens=None)
        if odd == "no logprobs":
            made = replace(made, tokens=TokenBlock.of(made.tokens.ids))
        if odd == "versions" and made.tokens is not None:
            half = len(made.tokens.ids) // 2
            made = replace(made, versions=(VersionSpan("1", half), VersionSpan("2", len(made.tokens.ids) - half)))
        self.replies[key] = replace(made, prompt_ids=None if odd == "no prompt" else prompt, prompt_prefix=0)
        if not self.waits:
            return made
        return self._later(made, self.waits[request.chat_number % len(self.waits)])

    @staticmethod
    async def _later(made, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        return made


class Forgetful(RolloutCache):
    """A cache that does not know the chats that some deltas continue."""

    forgets = frozenset()

    def chat(self, request, now):
        key = (request.sample, request.chat_number)
        if (
            request.parent_chat
            and not request.prefix_len
            and request.chat_number in self.forgets
            and key not in self.sent
        ):
            self.sent.add(key)
            raise UnknownChat(request.sample, request.parent_chat)
        return super().chat(request, now)

    sent: set = set()  # noqa: RUF012 - replaced before every use


@dataclass
class Transport:
    """One way to the agent, with the agent and the policy behind it."""

    agent: Planned
    sampler: Sampler
    play: object
    seen: dict = field(default_factory=dict)


async def open_transports(stack: AsyncExitStack):
    """Callback with full histories, callback with deltas, and an attachment."""
    enter = stack.enter_async_context
    config = ServerConfig(retry_delay=(0.01, 0.02), outbox_delay=(0.01, 0.05), trainer_grace=2.0)
    transports = {}
    for name, delta in (("callback", False), ("callback with deltas", True)):
        agent, sampler = Planned(), Sampler()
        server = await enter(AgentServer([agent], port=0, config=config))
        trainer, client = await enter(CallbackTrainer(sampler)), await enter(RolloutClient(server.address))

        async def play(request, trainer=trainer, client=client, delta=delta):
            await client.init(request, callback=replace(trainer.callback(), delta=delta))
            return await trainer.outcome(request.rollout_id, PATIENCE)

        trainer.cache.__class__ = Forgetful
        transports[name] = Transport(agent, sampler, play)
    agent, sampler = Planned(), Sampler()
    server = await enter(AgentServer([agent], port=0, config=config))
    attached = await enter(Trainer([server.address], sampler))
    attached.scheduler.cache.__class__ = Forgetful

    async def through(request):
        async with asyncio.timeout(PATIENCE):
            return await attached.rollout(request)

    transports["attach"] = Transport(agent, sampler, through)
    return transports


def prompt_and_reply(response):
    """All tokens of a chat; None if they are unknown."""
    if response.prompt_ids is None or response.tokens is None:
        return None
    return np.concatenate([response.prompt_ids, response.tokens.ids])
