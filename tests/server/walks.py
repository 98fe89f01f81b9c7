"""An agent that walks through random conversations, and a trainer that only uses `parent_chat`.

The agent spells its messages differently in every chat: 1 or 1.0, keys in another order. The trainer spells the JSON
text of its replies differently, too. It keeps the tokens of each chat by number, and never compares messages.
"""

import asyncio
import itertools
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, message_pb2, outcome_pb2, rollout_pb2, tokens_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import TrainerServiceServicer
from osmosis_grpc.protocol.types import ChatPurpose

BIG = 2**63 - 1
VALUES = [0, 1, -1, 1.5, 1e15, 2**53 + 1, BIG, True, False, None, "1", "", [], {}, [1, 1.0, True], {"b": 1, "a": [2]}]
SAMPLES = ["main", "other"]
Key = tuple[str, int]


def respelled(value: Any, rng: random.Random) -> Any:
    """An equal JSON value: keys in another order, and 1 or 1.0."""
    if isinstance(value, dict):
        return {key: respelled(item, rng) for key, item in rng.sample(list(value.items()), len(value))}
    if isinstance(value, list):
        return [respelled(item, rng) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**53 or value != int(value):
        return value
    return rng.choice([int(value), float(value)])


def spelled(value: Any, rng: random.Random) -> str:
    """A JSON text of a value: white space, the order of keys and the spelling of numbers are random."""
    space = rng.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        pairs = rng.sample(list(value.items()), len(value))
        return "{" + space + f",{space}".join(f"{json.dumps(k)}{space}:{spelled(v, rng)}" for k, v in pairs) + "}"
    if isinstance(value, list):
        return f"[{space}" + f"{space},".join(spelled(item, rng) for item in value) + "]"
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**53 or value != int(value):
        return json.dumps(value)
    return rng.choice([f"{int(value)}", f"{int(value)}.0", f"{int(value)}e0", f"{int(value)}.00E+0"])


def noise(rng: random.Random) -> dict[str, Any]:
    """Keys of a message that no typed field has."""
    return {name: rng.choice(VALUES) for name in rng.sample(["vendor", "index", "cache"], rng.randint(0, 3))}


def planned(rng: random.Random, rounds: int) -> list[list[dict[str, Any]]]:
    """Rounds of chats that are asked at once. `base` is the chat to continue; 0 begins anew."""
    counts, plan = dict.fromkeys(SAMPLES, 0), []
    for number in range(rounds):
        before, chats = dict(counts), []
        for _ in range(rng.choice([1, 1, 2, 3])):
            sample = rng.choice(SAMPLES)
            counts[sample] += 1
            answered = before[sample]
            base = rng.choice([answered, answered, rng.randint(0, answered)])
            new = [{"role": "user", "content": f"new {number}", **noise(rng)} for _ in range(rng.randint(not base, 2))]
            purpose = rng.choice(["policy"] * 7 + ["judge"])
            chats.append({"sample": sample, "base": base, "new": new, "purpose": purpose})
        plan.append(chats)
    return plan


class Walks(RolloutAgentLoop):
    """Asks the chats of `metadata["plan"]`."""

    name: ClassVar[str] = "walks"

    def get_tools(self, request: Any) -> Any:
        return []

    async def run(self, ctx: Any) -> Any:
        rng = random.Random(ctx.request.metadata["seed"])
        histories: dict[Key, list[Any]] = {(sample, 0): list(ctx.request.messages) for sample in SAMPLES}
        counts: dict[str, int] = defaultdict(int)
        bases: list[tuple[str, int, int]] = []
        for chats in ctx.request.metadata["plan"]:
            asked = []
            for chat in chats:
                sample, base = chat["sample"], int(chat["base"])
                counts[sample] += 1
                bases.append((sample, counts[sample], base))
                history = respelled([*histories[sample, base], *chat["new"]], rng)
                asked.append((sample, counts[sample], history, ChatPurpose(chat["purpose"])))
            calls = (ctx.chat(history, sample=sample, purpose=purpose) for sample, _, history, purpose in asked)
            replies = await asyncio.gather(*calls)
            for (sample, number, history, _), reply in zip(asked, replies, strict=True):
                assert reply.chat_number == number
                histories[sample, number] = [*history, reply.message]
        return ctx.complete([], reward=1.0, extra_fields={"bases": bases})


@dataclass
class Chat:
    """One answered chat, as the trainer keeps it."""

    parent: int
    prompt: list[int]
    reply: list[int]
    logprobs: list[float]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.reply


@dataclass
class Segment:
    """A segment, built by the rules in tokens.proto."""

    chats: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, number: int, chat: Chat) -> None:
        new = chat.prompt[len(self.ids) :]
        self.ids += new + chat.reply
        self.mask += [0] * len(new) + [1] * len(chat.reply)
        self.logprobs += chat.logprobs
        self.chats.append(number)


class BlindTrainer(TrainerServiceServicer):
    """Answers chats of one rollout and builds its segments. It knows a chat by its number only."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chats: dict[Key, Chat] = {}
        self.outcome: asyncio.Future[outcome_pb2.RolloutOutcome] = asyncio.get_running_loop().create_future()
        self.forms: set[str] = set()
        self._ids = itertools.count(1)

    def init(self, rollout_id: str, rounds: int) -> rollout_pb2.InitRequest:
        rng = self.rng
        messages = [
            message_pb2.Message(role="user", text="begin", extra_json=spelled(noise(rng), rng)) for _ in range(2)
        ]
        metadata = {"seed": rng.randrange(BIG), "plan": planned(rng, rounds)}
        spec = rollout_pb2.RolloutSpec(agent_loop="walks", messages=messages, metadata_json=json.dumps(metadata))
        return rollout_pb2.InitRequest(rollout_id=rollout_id, spec=spec)

    async def Chat(self, request: chat_pb2.ChatRequest, context: Any) -> chat_pb2.ChatResponse:
        await asyncio.sleep(self.rng.choice([0.0, 0.002]))  # so that replies come in any order
        return self.answer(request)

    async def Complete(self, request: outcome_pb2.CompleteRequest, context: Any) -> outcome_pb2.CompleteResponse:
        if not self.outcome.done():
            self.outcome.set_result(request.outcome)
        return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)

    def answer(self, request: chat_pb2.ChatRequest) -> chat_pb2.ChatResponse:
        rng, form = self.rng, request.WhichOneof("history")
        self.forms.add(form)
        history = request.delta if form == "delta" else request.full
        parent = history.parent_chat
        new = len(history.messages) - (0 if form == "delta" else request.full.prefix_messages)
        known = self.chats[request.sample, parent].tokens if parent else []
        prompt = list(known)
        if known and rng.random() < 0.15:  # the tokens of the earlier text are others now
            prompt = [*known[: rng.randrange(len(known))], next(self._ids)]
        prompt += [next(self._ids) for _ in range(new * rng.randint(1, 3))]
        reply = [next(self._ids) for _ in range(rng.randint(1, 4))]
        chat = Chat(parent, prompt, reply, [-0.25 * rng.randint(0, 9) for _ in reply])
        self.chats[request.sample, request.chat_number] = chat
        shared = next((i for i, pair in enumerate(zip(known, prompt, strict=False)) if len(set(pair)) > 1), None)
        longest = min(len(known), len(prompt)) if shared is None else shared
        prefix = rng.choice([0, longest, rng.randint(0, longest)])
        name = f"{request.sample} {request.chat_number}"
        message = message_pb2.Message(role="assistant", text=name, extra_json=spelled(noise(rng), rng))
        return chat_pb2.ChatResponse(
            message=message,
            tokens=tokens_pb2.TokenBlock(ids=reply, logprobs=chat.logprobs),
            prompt=tokens_pb2.TokenBlock(ids=prompt[prefix:]),
            prompt_prefix=prefix,
        )

    def segments(self, sample: str, named: set[int], dropped: set[int]) -> list[Segment]:
        """The segments of the chats that the outcome names, in order of their numbers. Dropped chats come last."""
        segments: list[Segment] = []
        of: dict[int, Segment] = {}
        for number in sorted(named, key=lambda number: (number in dropped, number)):
            chat = self.chats[sample, number]
            segment = of.get(chat.parent)
            tokens = self.chats[sample, chat.parent].tokens if chat.parent else []
            newest = segment is not None and segment.chats[-1] == chat.parent
            newest = newest and (number in dropped) is (chat.parent in dropped)
            if segment is None or not newest or chat.prompt[: len(tokens)] != tokens:
                segment = Segment()
                segments.append(segment)
            segment.add(number, chat)
            of[number] = segment
        return sorted(segments, key=lambda segment: segment.chats[0])


def runs_of(mask: list[int]) -> list[int]:
    """The run lengths of a mask; the first run is zeros."""
    runs = [len(list(group)) for _, group in itertools.groupby(mask)]
    return [0, *runs] if mask[0] else runs
