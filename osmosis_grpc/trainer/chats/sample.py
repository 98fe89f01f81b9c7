"""One sample as a trainer keeps it: its conversation, its tokens, and every chat that was asked."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from osmosis_grpc.errors import CallError
from osmosis_grpc.types import (
    ChatPurpose,
    ChatRef,
    ChatRequest,
    ChatResponse,
    Ids,
    Message,
    Sample,
    SampledChat,
    Segment,
    events,
    jsontext,
)
from osmosis_grpc.types.assembly import Assembler
from osmosis_grpc.types.conversation import Conversation, Node, path

if TYPE_CHECKING:
    from osmosis_grpc.storage.ledger import ChatRow

Body = tuple[Node, str, str, ChatPurpose]
"""Where its history ends (equal histories end in the same node), parameters, what stands for its tools, purpose."""


class PendingChat:
    """A chat that was asked, answered or not."""

    __slots__ = ("_continues", "_response", "_sample", "body", "done", "number", "task", "unwritten", "written")

    def __init__(self, sample: "SampleState", number: int, body: Body, continues: int) -> None:
        self.number = number
        self.body = body
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the answer, where there is a ledger with its commit; what went wrong is raised."""
        self.task: asyncio.Future[ChatResponse] | None = None
        self.unwritten: ChatRow | None = None
        """What the ledger has not committed."""
        self.written: bytes | None = None
        """What it has, until it is sent."""
        self._sample = sample
        self._continues = continues
        self._response: ChatResponse | None = None

    @property
    def answered(self) -> bool:
        """Whether there is a reply."""
        return self._response is not None

    @property
    def continues(self) -> int:
        """The chat that its tokens continue; 0 for none."""
        return self._continues

    def answer(self, response: ChatResponse) -> None:
        """Keep a reply, and tell it. Raises InvalidArgument when its parts do not agree."""
        self.keep(response)
        self.done.set_result(None)

    def keep(self, response: ChatResponse) -> None:
        """Keep a reply, and tell nobody. Raises InvalidArgument when its parts do not agree."""
        response.check()
        reply = jsontext.copy(response.message, "message")
        sample, purpose = self._sample, self.body[3]
        if response.prompt_ids is not None and not response.prompt_prefix:
            shared = sample.assembler.shared_prefix(self._continues, response.prompt_ids)
            if shared:
                response = replace(response, prompt_ids=response.prompt_ids[shared:], prompt_prefix=shared)
        sample.assembler.add(self.number, self._continues, response, purpose)
        sample.tree.answer(self.body[0], reply, self.number)
        self._response = response

    def kept(self) -> ChatResponse:
        """The reply as it is kept: its prompt from the tokens of `continues` onward."""
        assert self._response is not None
        return self._response

    def as_kept(self, continues: int) -> bool:
        """Whether the reply to whoever continues this chat is the one that is kept."""
        response = self.kept()
        return response.prompt_ids is None or (
            continues == self._continues and bool(continues or not response.prompt_prefix)
        )

    def fail(self, error: CallError) -> None:
        """Nothing was sampled: the next one that asks begins anew."""
        if self._sample.asked.get(self.number) is self:
            del self._sample.asked[self.number]
        self.done.set_exception(error)
        self.done.exception()  # it may be that nobody asks any more

    def reply(self, continues: int = 0) -> ChatResponse:
        """The reply, its prompt told from the tokens of `continues` onward; 0 tells it in full."""
        response = self.kept()
        if self.as_kept(continues):
            return response
        whole = self.prompt()
        assert whole is not None
        shared = self._sample.assembler.shared_prefix(continues, whole) if continues else 0
        return replace(response, prompt_ids=whole[shared:], prompt_prefix=shared)

    def prompt(self) -> Ids | None:
        """The whole prompt; None when it was not told."""
        response, assembler = self._response, self._sample.assembler
        if response is None or response.prompt_ids is None:
            return None
        kept = assembler.prompt(self.number)
        if kept is not None:
            return kept
        return np.concatenate([assembler.tokens(self._continues)[: response.prompt_prefix], response.prompt_ids])

    def sampled(self) -> SampledChat:
        """Its tokens."""
        tokens = self._response.tokens if self._response else None
        return SampledChat(number=self.number, continues=self._continues, prompt_ids=self.prompt(), tokens=tokens)

    def place(self, continues: int | None, whole: Ids | None) -> None:
        """Enter its sample's assembler again, its whole prompt being `whole`."""
        assert self._response is not None
        self._continues = self._continues if continues is None else continues
        self._response = replace(self._response, prompt_ids=whole, prompt_prefix=0)
        self._sample.assembler.add(self.number, self._continues, self._response, self.body[3])

    def feed(self, assembler: Assembler) -> None:
        """Hand it to another assembler."""
        assert self._response is not None
        whole = replace(self._response, prompt_ids=self.prompt(), prompt_prefix=0)
        assembler.add(self.number, self._continues, whole, self.body[3])


class SampleState:
    """One conversation of a rollout."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = Conversation()
        self.assembler = Assembler()
        self.asked: dict[int, PendingChat] = {}

    def holds(self, numbers: Iterable[int]) -> bool:
        """Whether all these chats were answered here."""
        return all(number in self.asked and self.asked[number].answered for number in numbers)

    def restore(self, asked: events.ChatRequested, response: ChatResponse) -> None:
        """Take in a chat that another process answered; one that is known stays as it is."""
        if asked.number in self.asked:
            return
        if asked.continues:
            position = self.tree.insert_after(asked.continues, asked.messages)
        else:
            position = self.tree.insert(asked.messages)
        if position is None:
            return  # what it continues is no longer told: the sample stays as it was reported
        body = (position.node, jsontext.canonical(dict(asked.params)), tools_digest(asked.tools), asked.purpose)
        chat = self.asked[asked.number] = PendingChat(self, asked.number, body, asked.continues)
        chat.answer(response)

    def learn(self, asked: ChatRequest, continues: int, tools: str, response: ChatResponse) -> None:
        """Take in a chat that this trainer answered before it was started anew; `tools` stand for those offered."""
        position = None
        if asked.continues:
            position = self.tree.insert_after(asked.continues, asked.messages)
        if position is None:
            position = self.tree.insert(asked.messages)
        body = (position.node, jsontext.canonical(dict(asked.params)), tools, asked.purpose)
        chat = self.asked[asked.number] = PendingChat(self, asked.number, body, continues)
        chat.answer(response)

    def reassemble(self, continues: Mapping[int, int]) -> None:
        """Put the tokens together anew, in order, with each chat continuing the one that the server says."""
        answered = [asked for _, asked in sorted(self.asked.items()) if asked.answered]
        wholes = [(asked, asked.prompt()) for asked in answered]
        self.assembler = Assembler()
        for asked, whole in wholes:
            asked.place(continues.get(asked.number), whole)

    def whole(self, begins: ChatRef, messages: Sequence[Message]) -> tuple[ChatRef, Sequence[Message]]:
        """A conversation with what it begins with put back."""
        reply = self.tree.reply(begins.number)
        if begins.prefix_len or reply is None:
            return begins, messages
        known = path(reply)
        return ChatRef(begins.sample, begins.number, len(known)), [*known, *messages]

    def report(self, reported: Sample, omitted: bool) -> Sample:
        """What to train on, from the trainer's own chats: those whose reply the agent received.

        A completion names them. As told where the trainer did not answer them all, or where the
        sample is not trainable.
        """
        if reported.begins is not None:
            begins, messages = self.whole(reported.begins, reported.messages)
            reported = replace(reported, begins=begins, messages=messages)
        answered = {number: asked for number, asked in sorted(self.asked.items()) if asked.answered}
        reported = replace(reported, chats=tuple(asked.sampled() for asked in answered.values()))
        named = {number for segment in reported.segments for number in segment.chats}
        if reported.not_trainable_reason:
            return reported
        if not named <= set(answered):
            missing = "its segments refer to chats that are not known here, nor from the rollout's events"
            return _untrainable(reported, missing) if any(s.referred for s in reported.segments) else reported
        if omitted:
            named = set(answered)
            if named != set(range(1, len(named) + 1)):
                reason = "its segments were left out for their size, and this trainer did not answer every chat"
                return _untrainable(reported, reason)
        assembler = self.assembler
        if _shape(reported.segments) != _shape(assembler.references()):
            in_order = [number for segment in reported.segments for number in segment.chats] or sorted(named)
            assembler = Assembler()
            for number in in_order:
                answered[number].feed(assembler)
        segments, reason = assembler.segments(), assembler.reason
        if (
            any(segment.referred for segment in reported.segments)
            and not reason
            and _shape(reported.segments) != _shape(segments)
        ):
            return _untrainable(reported, "its segments do not agree with the chats that were answered here")
        return replace(reported, segments=segments, trainable=not reason, not_trainable_reason=reason)


def tools_digest(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Equal for equal tools; empty for None."""
    return "" if tools is None else sha256(jsontext.canonical(list(tools)).encode()).hexdigest()


def _shape(segments: Sequence[Segment]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(segment.chats, segment.mask_runs) for segment in segments]


def _untrainable(reported: Sample, reason: str) -> Sample:
    return replace(reported, segments=(), trainable=False, not_trainable_reason=reason)
