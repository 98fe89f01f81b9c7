"""A policy that counts, and what an outcome has to hold of what it said."""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, RolloutRequest, TokenBlock
from tests.attach.agents import ASKED, ENDED, TOOL

REPLIED = "the policy's reply"
"""Stands in every reply."""

Key = tuple[str, int, str, int]


def made_of(text: str, count: int) -> TokenBlock:
    """Tokens that stand for a text and nothing else."""
    start = zlib.crc32(text.encode())
    ids = (start + 7919 * np.arange(count, dtype=np.int64)) % 50_000
    return TokenBlock.of(ids, -(ids % 997 + 1) / 1000)


def spoken(request: ChatRequest) -> np.ndarray:
    """A prompt as a chat template makes it: equal messages have equal ids."""
    known = [] if request.known_ids is None else [request.known_ids]
    new = request.messages[request.prefix_len if known else 0 :]
    return np.concatenate([*known, *(made_of(m["content"], size_of(m["content"])).ids for m in new)]).astype("<u4")


def size_of(text: str) -> int:
    """How many tokens a text has."""
    return 3 + zlib.crc32(text.encode()) % 11


class CountingPolicy:
    """Answers after a while, other things in every attempt. Remembers everything it was asked."""

    def __init__(self, latency: tuple[float, float] = (0.005, 0.04), *, turns: int = 3) -> None:
        self.latency = latency
        self.turns = turns
        self.finals = 0
        """Last chats of rollouts that were answered: outcomes are to come."""
        self.calls: Counter[Key] = Counter()
        self.replies: dict[Key, ChatResponse] = {}
        self.without_tools: set[Key] = set()
        """Chats that came without the agent's tools."""
        self.open = 0
        """Chats being sampled."""
        self.gate = asyncio.Event()
        """While it is not set, nothing is answered."""
        self.gate.set()

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        key = (request.rollout_id, request.attempt, request.sample, request.chat_number)
        self.calls[key] += 1
        if list(request.tools or ()) != [TOOL]:
            self.without_tools.add(key)
        self.open += 1
        try:
            await asyncio.sleep(random.uniform(*self.latency))  # the policy's latency
            await self.gate.wait()
        finally:
            self.open -= 1
        text = f"{REPLIED} {request.chat_number} to {request.rollout_id}, attempt {request.attempt}"
        self.replies[key] = ChatResponse(
            message={"role": "assistant", "content": text},
            tokens=made_of(text, size_of(text)),
            prompt_ids=spoken(request),
        )
        self.finals += request.chat_number == self.turns
        return self.replies[key]

    @property
    def asked_twice(self) -> list[Key]:
        """Chats that were sampled more than once."""
        return [key for key, calls in self.calls.items() if calls > 1]

    def attempts(self, rollout_id: str) -> set[int]:
        """In which attempts it was asked anything for a rollout."""
        return {attempt for name, attempt, _, _ in self.calls if name == rollout_id}


def requests(name: str, count: int, *, turns: int = 3, think: float = 0.02) -> Iterator[RolloutRequest]:
    """Rollouts for the Talker."""
    for n in range(count):
        yield RolloutRequest(
            rollout_id=f"{name}-{n}",
            messages=[{"role": "user", "content": f"question {n}"}],
            metadata={"turns": turns, "think": think},
        )


def check_whole(outcome: RolloutOutcome, replies: Callable[[Key], ChatResponse | None], *, turns: int = 3) -> None:
    """A rollout of the Talker's that went well, with all that the policy said in it, and no token else trained on."""
    assert outcome.status == "COMPLETED", f"{outcome.rollout_id}: {outcome.failure}"
    assert outcome.finish_reason == ENDED
    assert outcome.reward == float(turns)
    keys = [(outcome.rollout_id, outcome.attempt, "main", number) for number in range(1, turns + 1)]
    given = [replies(key) for key in keys]
    assert all(given), f"{outcome.rollout_id}: a reply that the policy never gave"
    said: list[object] = []
    for number, reply in enumerate(given, start=1):
        said += [reply.message["content"], f"{ASKED}: {number}"]
    assert [m["content"] for m in outcome.messages[1:]] == said
    sample = outcome.samples["main"]
    assert list(sample.messages) == list(outcome.messages)
    assert sample.trainable, f"{outcome.rollout_id}: {sample.not_trainable_reason}"
    assert [chat.chat_number for chat in sample.chats] == list(range(1, turns + 1))
    for chat, reply in zip(sample.chats, given, strict=True):
        assert np.array_equal(chat.tokens.ids, reply.tokens.ids)
        assert np.array_equal(chat.tokens.logprobs, reply.tokens.logprobs)
    assert sum(segment.sampled for segment in sample.segments) == sum(len(reply.tokens.ids) for reply in given)
    trained = np.concatenate([segment.ids[segment.mask() == 1] for segment in sample.segments])
    assert np.array_equal(trained, np.concatenate([reply.tokens.ids for reply in given]))
    logprobs = np.concatenate([segment.logprobs for segment in sample.segments])
    assert np.array_equal(logprobs, np.concatenate([reply.tokens.logprobs for reply in given]))


def check_run(
    asked: Sequence[str], outcomes: Sequence[RolloutOutcome], policy: CountingPolicy, *, turns: int = 3
) -> None:
    """Every rollout ended once and is whole, and no chat was sampled twice."""
    assert sorted(outcome.rollout_id for outcome in outcomes) == sorted(asked)
    for outcome in outcomes:
        check_whole(outcome, policy.replies.get, turns=turns)
        assert len(outcome.samples["main"].segments) == 1, "nothing drifted, so nothing may part"
    assert policy.asked_twice == []
    assert policy.without_tools == set()
