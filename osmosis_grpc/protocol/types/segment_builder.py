"""Assembles the chats of a sample into segments. A trainer trains on the segments.

The tokens of a chat are its prompt and its reply. A new chat extends the segment of the earlier chat that it continues
if its prompt begins with all tokens of that chat, and that chat is the newest one of its segment. The segment then
grows by the new tokens of the prompt, which get mask 0, and by the reply, which gets mask 1.

Otherwise, the new chat begins a new segment, in which all tokens before its reply get mask 0. The segment has the
reason (SplitReason), unless it is the first one of the sample. So each sampled token gets mask 1 only once.

The segments do not depend on the order in which the replies arrive. If two chats continue the same chat, the chat with
the lower number becomes a part of the segment, and the other chat begins a new segment. Dropped chats (see
Segment.dropped) come after all others and are in segments of their own.
"""

from collections.abc import Collection
from itertools import starmap
from typing import NamedTuple

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.chat import ChatPurpose, ChatResponse
from osmosis_grpc.protocol.types.extras import Extras, cut, join
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.samples import Segment, SplitReason
from osmosis_grpc.protocol.types.segment_tokens import NO_IDS, NO_LOGPROBS, GrowingSegment
from osmosis_grpc.protocol.types.tokens import Ids, Logprobs, TokenBlock, VersionSpan


class _End(NamedTuple):
    """The segment of a chat. In this segment, the chat's tokens end at `end`, and its prompt ends at `prompt_end`."""

    segment: GrowingSegment
    end: int
    prompt_end: int
    parent: int
    """The chat that it continues; 0 for none."""


class SegmentBuilder:
    """Builds the segments of one sample. The chats are added one by one, each after the chat that it continues.

    The order of adding can differ from the order of the chats' numbers.
    """

    __slots__ = ("_ends", "_segments", "reason")

    def __init__(self) -> None:
        self._segments: list[GrowingSegment] = []
        self._ends: dict[int, _End] = {}
        self.reason = ""
        """Why the sample is not trainable; empty if it is trainable."""

    @property
    def sampled(self) -> int:
        """The number of tokens with mask 1."""
        return sum(sum(segment.runs[1::2]) for segment in self._segments)

    def tokens(self, chat: int) -> Ids:
        """Return a view of all tokens of a chat, prompt and reply; an empty array if they are unknown."""
        place = self._ends.get(chat)
        return NO_IDS if place is None else place.segment.ids(0, place.end)

    def prompt(self, chat: int) -> Ids | None:
        """Return a view of the whole prompt of a chat; None if the prompt is unknown."""
        place = self._ends.get(chat)
        return None if place is None else place.segment.ids(0, place.prompt_end)

    def prompt_extras(self, chat: int, first: int) -> Extras:
        """Return the extras of a chat's prompt from token `first` on. Omits an extra that one of these tokens lacks."""
        place = self._ends.get(chat)
        if place is None or place.segment.parts is None:
            return NOTHING
        return join(cut(place.segment.parts, first, place.prompt_end))

    @property
    def chats(self) -> set[int]:
        """The numbers of the chats that have been added with tokens."""
        return set(self._ends)

    def lacks(self, parent_chat: int, first: int = 0) -> bool:
        """Return whether ids of a chat from token `first` on are not kept, so that they must be read again."""
        place = self._ends.get(parent_chat)
        return place is not None and first < place.end and first < place.segment.start

    def prompt_length(self, parent_chat: int, response: ChatResponse) -> int | None:
        """Return the number of ids in the whole prompt of a reply; None if the reply came without its prompt.

        `parent_chat` is the number of the earlier chat. The reply leaves out the first `prompt_prefix` ids of its
        prompt, because they are also the first tokens of the earlier chat. Raises InvalidArgument if the earlier chat
        has fewer tokens than `prompt_prefix`.
        """
        if response.prompt_ids is None:
            return None
        place = self._ends.get(parent_chat)
        end = place.end if place else 0
        if response.prompt_prefix > end:
            raise InvalidArgument(
                "prompt_prefix",
                f"is {response.prompt_prefix}, but the earlier chat {parent_chat} has only {end} tokens",
            )
        return response.prompt_prefix + len(response.prompt_ids)

    def shared_prefix(self, parent_chat: int, prompt: Ids) -> int:
        """Return how many ids at the start of a prompt are also the first tokens of an earlier chat.

        `parent_chat` is the number of the earlier chat.
        """
        return _common(self.tokens(parent_chat), prompt)

    def add(
        self,
        number: int,
        parent_chat: int,
        response: ChatResponse,
        purpose: ChatPurpose,
        *,
        forked: bool = False,
        refer: bool = False,
        keep_ids: bool = False,
    ) -> int | None:
        """Add an answered chat to the segments.

        A chat with the purpose JUDGE is in no segment of the outcome. Neither is a `forked` chat, because the rollout
        that recorded its reply is trained on it. A chat that continues a forked chat begins a segment, in which all
        tokens before its reply have mask 0.

        With `refer`, the logprobs of the reply are not kept, so segments() may not be called later, but references()
        may. A reply that leaves out all tokens of the earlier chat needs only their number, so without `keep_ids` their
        ids are dropped. If another reply needs them, lacks(parent_chat, response.prompt_prefix) is true.

        If the reply came without ids or logprobs, or needs dropped ids, the sample is not trainable, and `reason` has
        the reason. Returns the result of prompt_length(). Raises InvalidArgument as prompt_length() does.
        """
        length = self.prompt_length(parent_chat, response)
        outside = SplitReason.RECORDED if forked else SplitReason.JUDGE if purpose is ChatPurpose.JUDGE else None
        new_ids, prefix, tokens = response.prompt_ids, response.prompt_prefix, response.tokens
        lacks = _lacks(response)
        if lacks and not outside:
            self.reason = self.reason or f"chat {number}: {lacks}"
        if new_ids is None or tokens is None:
            return length
        before = self._ends.get(parent_chat)
        end = before.end if before else 0
        shared = prefix
        if self.lacks(parent_chat, prefix):
            self.reason = self.reason or f"chat {number}: the ids of chat {parent_chat} are lost"
        elif before is not None and prefix < end:
            shared += _common(before.segment.ids(prefix, end), new_ids)
        if before is not None and shared == end and self._extends(number, parent_chat, before, outside=outside):
            segment = before.segment
            if refer and not keep_ids and prefix == end and not outside:
                segment.forget()
            known = end - prefix
            segment.append(new_ids[known:] if known else new_ids, mask=0, extras=response.prompt_extras, first=known)
        else:
            drift = shared if shared < end else None
            segment = GrowingSegment(_reason(parent_chat, before, drift), drift, outside)
            if not outside:
                self._segments.append(segment)
            if before is not None and prefix:
                if before.segment.start:
                    segment.skip(prefix)
                else:
                    segment.append(before.segment.ids(0, prefix), mask=0)
                if before.segment.parts is not None:
                    segment.parts = cut(before.segment.parts, 0, prefix)
            segment.append(new_ids, mask=0, extras=response.prompt_extras)
        prompt_end = segment.length
        segment.append(tokens.ids, mask=1, extras=tokens.extras)
        segment.logprobs.append(NO_LOGPROBS if refer else _logprobs(tokens))
        spans = response.versions
        if len(spans) == 1:  # a single span counts for all tokens of the reply
            spans = (VersionSpan(spans[0].version, len(tokens.ids)),)
        segment.versions.append(spans)
        segment.chats.append(number)
        self._ends[number] = _End(segment, segment.length, prompt_end, parent_chat)
        return length

    def _extends(self, number: int, parent_chat: int, before: _End, *, outside: SplitReason | None) -> bool:
        """Return whether a chat becomes a part of the segment of the chat that it continues.

        The prompt of the chat begins with all tokens of the other chat. If a chat with a higher number came first and
        is a part of that segment, that chat and those after it move to a new segment.
        """
        segment, end = before.segment, before.end
        if bool(segment.outside) is not bool(outside):
            return False
        if end == segment.length and segment.chats[-1] == parent_chat:
            return True
        following = segment.chats[segment.chats.index(parent_chat) + 1]
        if following < number:
            return False
        self._split(segment, parent_chat)
        return True

    def drop(self, chats: Collection[int]) -> None:
        """Move dropped chats to their own segments. The other segments then grow as if these chats did not exist.

        If a dropped chat is continued by another chat, that chat is dropped, too. Call this after the last add().
        """
        dropped = self._ends.keys() & chats
        if not dropped:
            return
        for number in self._ends.keys() - dropped:
            while (number := self._ends[number].parent) in dropped:
                dropped.remove(number)
        last: list[int] = []
        for segment in self._segments.copy():
            kept = [chat for chat in segment.chats if chat not in dropped]
            segment.dropped = not kept
            if kept and len(kept) < len(segment.chats):
                self._split(segment, kept[-1]).dropped = True
                last.append(kept[-1])
        for chat in last:
            following = [other for other in self._segments if self._follows(other, chat)]
            if following:
                self._join(self._ends[chat].segment, min(following, key=lambda each: each.chats[0]))

    def _follows(self, segment: GrowingSegment, chat: int) -> bool:
        """Return whether a kept segment could extend the segment of `chat`, which ends with this chat."""
        first = self._ends[segment.chats[0]]
        return segment.split_by is SplitReason.BRANCH and first.parent == chat and not segment.dropped

    def _split(self, segment: GrowingSegment, chat: int) -> GrowingSegment:
        """Move the chats after `chat` to a new segment, and return it."""
        rest = segment.split(chat, self._ends[chat].end)
        if not segment.outside:
            self._segments.append(rest)
        self._place(rest.chats, rest)
        return rest

    def _join(self, segment: GrowingSegment, other: GrowingSegment) -> None:
        segment.join(other)
        self._segments = [each for each in self._segments if each is not other]
        self._place(other.chats, segment)

    def _place(self, chats: Collection[int], segment: GrowingSegment) -> None:
        for chat in chats:
            self._ends[chat] = self._ends[chat]._replace(segment=segment)

    def _in_order(self) -> list[GrowingSegment]:
        return sorted(self._segments, key=lambda segment: segment.chats[0])

    def _with_reasons(self) -> list[tuple[GrowingSegment, SplitReason | None]]:
        """Return each segment and why it began.

        The first one has no reason if it began because it continues no chat.
        """
        listed: list[tuple[GrowingSegment, SplitReason | None]] = [(each, each.split_by) for each in self._in_order()]
        if listed and listed[0][1] is SplitReason.HISTORY_CHANGED:
            listed[0] = listed[0][0], None
        return listed

    def references(self) -> tuple[Segment, ...]:
        """Return the segments without their tokens; no segments if the sample is not trainable.

        The receiver has answered the chats itself, so it already has the tokens.
        """
        return () if self.reason else tuple(starmap(GrowingSegment.reference, self._with_reasons()))

    def segments(self) -> tuple[Segment, ...]:
        """Return all segments; none if the sample is not trainable."""
        return () if self.reason else tuple(starmap(GrowingSegment.freeze, self._with_reasons()))


def _reason(parent_chat: int, before: _End | None, drift: int | None) -> SplitReason:
    if before is None:
        return SplitReason.NO_TOKENS if parent_chat else SplitReason.HISTORY_CHANGED
    if drift is not None:
        return SplitReason.TOKENS_DIFFER
    return before.segment.outside or SplitReason.BRANCH


def _lacks(response: ChatResponse) -> str:
    if response.tokens is None:
        return "the reply came without token ids"
    if response.prompt_ids is None:
        return "the reply came without its prompt's token ids"
    if response.tokens.complete:
        return ""
    if response.tokens.logprobs is None:
        return "the reply came without logprobs"
    missing = np.isnan(response.tokens.logprobs)
    more = int(missing.sum()) - 1
    return f"logprob {int(missing.argmax())} is NaN" + (f", and {more} more are" if more else "")


def _logprobs(tokens: TokenBlock) -> Logprobs:
    return np.full(len(tokens.ids), np.nan, dtype="<f4") if tokens.logprobs is None else tokens.logprobs


def _common(one: Ids, other: Ids) -> int:
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    return int(differ.argmax()) if differ.any() else count
