"""One sample in the cache: its conversation, its tokens and its chats."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatRequest,
    ChatResponse,
    Extras,
    Ids,
    Message,
    PrefixChat,
    Sample,
    SampledChat,
    Segment,
    events,
    jsontext,
)
from osmosis_grpc.protocol.types.conversation_tree import Conversation, Node, Position, path
from osmosis_grpc.protocol.types.extras import rows
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder

if TYPE_CHECKING:
    from osmosis_grpc.storage.ledger import ChatRow

Body = tuple[Node, str, str, ChatPurpose, str]
"""Two chats are equal if these are: the last node of the history, the parameters, the digest of the tools, the purpose
and the policy. Equal histories have the same last node."""


class PendingChat:
    """A chat, answered or not."""

    __slots__ = (
        "_sample",
        "body",
        "chat_number",
        "done",
        "forked",
        "parent_chat",
        "response",
        "task",
        "unwritten",
        "written",
    )

    def __init__(
        self, sample: "SampleState", number: int, body: Body, parent_chat: int, *, forked: bool = False
    ) -> None:
        self.chat_number = number
        self.body = body
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the chat is answered and, with a ledger, committed. Raises the error of a failed policy call."""
        self.task: asyncio.Future[ChatResponse] | None = None
        self.unwritten: ChatRow | None = None
        """The row that the ledger has not committed yet."""
        self.written: bytes | None = None
        """The bytes of the committed reply, until the reply is sent."""
        self._sample = sample
        self.parent_chat = parent_chat
        """The number of the earlier chat whose tokens this chat continues; 0 for none."""
        self.response: ChatResponse | None = None
        self.forked = forked
        """Whether the reply was recorded in the rollout that this rollout forks from."""

    def answer(self, response: ChatResponse) -> None:
        """Keep a reply, and mark the chat as done. Raises InvalidArgument if the parts of the reply do not agree."""
        self.keep(response)
        self.done.set_result(None)

    def keep(self, response: ChatResponse) -> None:
        """Keep a reply. Raises InvalidArgument if the parts of the reply do not agree."""
        response.check()
        reply = jsontext.copy(response.message, "message")
        sample, purpose = self._sample, self.body[3]
        if response.prompt_ids is not None and not response.prompt_prefix:
            shared = sample.assembler.shared_prefix(self.parent_chat, response.prompt_ids)
            if shared:
                others = rows(response.prompt_extras, shared, len(response.prompt_ids))
                response = _without_prefix(response, response.prompt_ids, shared, others)
        sample.assembler.add(self.chat_number, self.parent_chat, response, purpose, forked=self.forked)
        sample.tree.answer(self.body[0], reply, self.chat_number)
        self.response = response

    def kept(self) -> ChatResponse:
        """Return the kept reply. Its prompt omits the tokens of the parent chat."""
        assert self.response is not None
        return self.response

    def as_kept(self, parent_chat: int) -> bool:
        """Return whether reply(parent_chat) equals the kept reply, so that its bytes can be used."""
        response = self.kept()
        return response.prompt_ids is None or (
            parent_chat == self.parent_chat and bool(parent_chat or not response.prompt_prefix)
        )

    def fail(self, error: CallError) -> None:
        """Fail every waiting caller with an error. The next request calls the policy again."""
        if self._sample.asked.get(self.chat_number) is self:
            del self._sample.asked[self.chat_number]
        self.done.set_exception(error)
        self.done.exception()  # no error is logged if the caller has left

    def reply(self, parent_chat: int = 0) -> ChatResponse:
        """Return the reply. Its prompt omits the tokens of `parent_chat`. With 0, the prompt is complete."""
        response = self.kept()
        if self.as_kept(parent_chat):
            return response
        whole = self.prompt()
        assert whole is not None
        assembler = self._sample.assembler
        shared = assembler.shared_prefix(parent_chat, whole) if parent_chat else 0
        return _without_prefix(response, whole, shared, self._prompt_extras(assembler, shared))

    def _prompt_extras(self, assembler: SegmentBuilder, first: int) -> Extras:
        """Return the extras of the prompt from token `first` on. `assembler` has those of the complete prompt."""
        response = self.kept()
        if response.prompt_ids is not None and first >= response.prompt_prefix:
            after = first - response.prompt_prefix
            return rows(response.prompt_extras, after, len(response.prompt_ids))
        return assembler.prompt_extras(self.chat_number, first)

    def prompt(self) -> Ids | None:
        """Return the complete prompt; None if the policy did not return it."""
        response, assembler = self.response, self._sample.assembler
        if response is None or response.prompt_ids is None:
            return None
        kept = assembler.prompt(self.chat_number)
        if kept is not None:
            return kept
        return np.concatenate([assembler.tokens(self.parent_chat)[: response.prompt_prefix], response.prompt_ids])

    def sampled(self) -> SampledChat:
        """Return the tokens of the chat."""
        tokens = self.response.tokens if self.response else None
        return SampledChat(
            chat_number=self.chat_number,
            parent_chat=self.parent_chat,
            prompt_ids=self.prompt(),
            tokens=tokens,
            params=jsontext.parse_object(self.body[1], "params") if self.body[1] != "{}" else jsontext.NOTHING,
        )

    def reassemble(self, parent_chat: int | None, whole: Ids | None, earlier: SegmentBuilder) -> None:
        """Add the chat to the new assembler of its sample. `whole` is the complete prompt of the chat."""
        self.parent_chat = self.parent_chat if parent_chat is None else parent_chat
        self.response = self.feed(self._sample.assembler, whole, earlier)

    def feed(self, assembler: SegmentBuilder, whole: Ids | None, earlier: SegmentBuilder) -> ChatResponse:
        """Add the chat to an assembler. Return the reply, whose prompt omits the tokens of the continued chat.

        `whole` is the complete prompt. `earlier` is the assembler that has the extras of the prompt.
        """
        response = self.kept()
        if whole is not None:
            shared = assembler.shared_prefix(self.parent_chat, whole)
            response = _without_prefix(response, whole, shared, self._prompt_extras(earlier, shared))
        assembler.add(self.chat_number, self.parent_chat, response, self.body[3], forked=self.forked)
        return response


class SampleState:
    """One conversation of a rollout."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = Conversation()
        self.assembler = SegmentBuilder()
        self.asked: dict[int, PendingChat] = {}

    def release(self) -> None:
        """Drop the chats and the links of the conversation, so that memory is freed without a garbage collection."""
        self.asked.clear()
        self.tree.release()

    def holds(self, numbers: Iterable[int]) -> bool:
        """Return whether all these chats are answered."""
        return all(number in self.asked and self.asked[number].response is not None for number in numbers)

    def restore(self, asked: events.ChatRequested, response: ChatResponse, *, forked: bool = False) -> None:
        """Add a chat that another process answered, unless it is known."""
        if asked.chat_number in self.asked:
            return
        if asked.parent_chat:
            position = self.tree.insert_after(asked.parent_chat, asked.messages)
        else:
            position = self.tree.insert(asked.messages)
        if position is not None:  # otherwise the parent chat is missing, and the sample stays as reported
            self._add(asked, position, asked.parent_chat, tools_digest(asked.tools), response, forked=forked)

    def learn(self, asked: ChatRequest, parent_chat: int, tools: str, response: ChatResponse) -> None:
        """Add an answered chat from the ledger. `tools` is the digest of its tools."""
        position = None
        if asked.parent_chat:
            position = self.tree.insert_after(asked.parent_chat, asked.messages)
        if position is None:
            position = self.tree.insert(asked.messages)
        self._add(asked, position, parent_chat, tools, response)

    def _add(
        self,
        asked: ChatRequest | events.ChatRequested,
        position: Position,
        parent_chat: int,
        tools: str,
        response: ChatResponse,
        *,
        forked: bool = False,
    ) -> None:
        body = (position.node, jsontext.canonical(dict(asked.params)), tools, asked.purpose, asked.policy)
        chat = self.asked[asked.chat_number] = PendingChat(self, asked.chat_number, body, parent_chat, forked=forked)
        chat.answer(response)

    def reassemble(self, parent_chat: Mapping[int, int]) -> None:
        """Assemble the tokens again, in chat order. `parent_chat` maps a chat to its parent chat at the server."""
        wholes = [(asked, asked.prompt()) for _, asked in sorted(self.asked.items()) if asked.response is not None]
        earlier, self.assembler = self.assembler, SegmentBuilder()
        for asked, whole in wholes:
            asked.reassemble(parent_chat.get(asked.chat_number), whole, earlier)

    def whole(self, begins: PrefixChat, messages: Sequence[Message]) -> tuple[PrefixChat, Sequence[Message]]:
        """Return a complete conversation: put the messages to which `begins` refers at the start."""
        reply = self.tree.reply(begins.chat_number)
        if begins.prefix_len or reply is None:
            return begins, messages
        known = path(reply)
        return PrefixChat(begins.sample, begins.chat_number, len(known)), [*known, *messages]

    def report(self, reported: Sample) -> Sample:
        """Return the sample, with segments assembled from the cached chats that its reported segments name.

        Keep the reported segments if the sample is not trainable, or if the trainer did not answer all these chats.
        """
        if reported.begins is not None:
            begins, messages = self.whole(reported.begins, reported.messages)
            reported = replace(reported, begins=begins, messages=messages)
        answered = {number: asked for number, asked in sorted(self.asked.items()) if asked.response is not None}
        reported = replace(reported, chats=tuple(asked.sampled() for asked in answered.values() if not asked.forked))
        named = {number for segment in reported.segments for number in segment.chats}
        if reported.not_trainable_reason:
            return reported
        if not named <= set(answered):
            missing = "its segments refer to chats that are not known here, nor from the rollout's events"
            return _untrainable(reported, missing) if any(s.referred for s in reported.segments) else reported
        assembler, dropped = self.assembler, reported.dropped_chats
        assembler.drop(dropped)
        if _shape(reported.segments) != _shape(assembler.references()):
            in_order = [number for segment in reported.segments for number in segment.chats]
            assembler = SegmentBuilder()
            for number in in_order:
                answered[number].feed(assembler, answered[number].prompt(), self.assembler)
            assembler.drop(dropped)
        segments, reason = assembler.segments(), assembler.reason
        if (
            any(segment.referred for segment in reported.segments)
            and not reason
            and _shape(reported.segments) != _shape(segments)
        ):
            return _untrainable(reported, "its segments do not agree with the chats that were answered here")
        if _shape(reported.segments) == _shape(segments):  # the server may know better why a segment began
            told = zip(segments, reported.segments, strict=True)
            segments = tuple(s if s.split is r.split else replace(s, split=r.split or s.split) for s, r in told)
        return replace(reported, segments=segments, trainable=not reason, not_trainable_reason=reason)


def _without_prefix(response: ChatResponse, whole: Ids, shared: int, extras: Extras) -> ChatResponse:
    """Return the reply without the first `shared` ids of its complete prompt. `extras` belong to the remaining ids."""
    return replace(response, prompt_ids=whole[shared:], prompt_prefix=shared, prompt_extras=extras)


def tools_digest(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return a digest of tools, or "" for None."""
    return "" if tools is None else sha256(jsontext.canonical(list(tools)).encode()).hexdigest()


def _shape(segments: Sequence[Segment]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(segment.chats, segment.mask_runs) for segment in segments]


def _untrainable(reported: Sample, reason: str) -> Sample:
    return replace(reported, segments=(), trainable=False, not_trainable_reason=reason)
