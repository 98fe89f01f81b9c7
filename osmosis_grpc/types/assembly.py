"""Segment assembly: from the chats of a sample to what a trainer trains on.

A chat's prompt is compared with the tokens (prompt and reply) of the chat it continues. It
begins with all of them, and that chat is the newest of its segment: the segment grows, what
is new in the prompt under mask 0, the reply under mask 1. It parts earlier (drift), or that
chat is not the newest (a branch): a new segment begins, everything before the reply under
mask 0. So no sampled token is ever under mask 1 twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.chat import ChatPurpose, ChatResponse
from osmosis_grpc.types.samples import Segment
from osmosis_grpc.types.tokens import Ids, Logprobs, VersionSpan

_NO_IDS: Ids = np.empty(0, dtype="<u4")


@dataclass(slots=True)
class _Growing:
    """A segment under construction: an array that doubles when it is full."""

    drift_index: int | None
    buffer: Ids = field(default_factory=lambda: np.empty(256, dtype="<u4"))
    length: int = 0
    logprobs: list[Logprobs] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    versioned: bool = True
    chats: list[int] = field(default_factory=list)

    def append(self, ids: Ids, mask: int) -> None:
        if not len(ids) and self.runs:
            return
        end = self.length + len(ids)
        if end > len(self.buffer):
            grown = np.empty(max(end, 2 * len(self.buffer)), dtype="<u4")
            grown[: self.length] = self.buffer[: self.length]
            self.buffer = grown
        self.buffer[self.length : end] = ids
        self.length = end
        while len(self.runs) <= mask or len(self.runs) % 2 != (mask + 1) % 2:
            self.runs.append(0)
        self.runs[-1] += len(ids)

    def freeze(self) -> Segment:
        ids = self.buffer[: self.length].copy()
        logprobs = np.concatenate(self.logprobs) if self.logprobs else np.empty(0, dtype="<f4")
        ids.flags.writeable = logprobs.flags.writeable = False
        return Segment(
            ids=ids, logprobs=logprobs, mask_runs=tuple(self.runs), chats=tuple(self.chats),
            versions=tuple(self.versions) if self.versioned else (), drift_index=self.drift_index,
        )  # fmt: skip


class Assembler:
    """Builds the segments of one sample, chat by chat, in order of their numbers or nearly so."""

    def __init__(self) -> None:
        self._segments: list[_Growing] = []
        self._ends: dict[int, tuple[_Growing, int]] = {}
        self.reason = ""
        """Why the sample is not trainable; empty while it is."""

    @property
    def sampled(self) -> int:
        """How many tokens stand under mask 1."""
        return sum(sum(segment.runs[1::2]) for segment in self._segments)

    def tokens(self, chat: int) -> Ids:
        """All tokens of a chat, prompt and reply; empty when they are not known. A view."""
        segment, end = self._ends.get(chat, (None, 0))
        return _NO_IDS if segment is None else segment.buffer[:end]

    def prompt(self, continues: int, response: ChatResponse) -> Ids | None:
        """The whole prompt of a reply, its shared prefix put back. None when it was not told."""
        if response.prompt_ids is None or not response.prompt_prefix:
            return response.prompt_ids
        before = self.tokens(continues)
        if response.prompt_prefix > len(before):
            raise InvalidArgument(
                "prompt_prefix", f"{response.prompt_prefix} leading ids, but chat {continues} has {len(before)} tokens"
            )
        return np.concatenate([before[: response.prompt_prefix], response.prompt_ids])

    def shared_prefix(self, continues: int, prompt: Ids) -> int:
        """How many leading ids a prompt shares with the tokens of the chat it continues."""
        return _common(self.tokens(continues), prompt)

    def add(self, number: int, continues: int, response: ChatResponse, purpose: ChatPurpose) -> None:
        """Take in an answered chat. Raises InvalidArgument when its prefix is longer than what it continues."""
        if purpose is ChatPurpose.JUDGE:
            return
        prompt, tokens = self.prompt(continues, response), response.tokens
        lacks = _lacks(prompt, response)
        if lacks:
            self.reason = self.reason or f"chat {number}: {lacks}"
        if prompt is None or tokens is None:
            return
        segment, end = self._ends.get(continues, (None, 0))
        drift = None
        if segment is not None:
            shared = _common(segment.buffer[:end], prompt)
            if shared < end:
                drift = shared
            if shared < end or end < segment.length:
                segment = None
        start = end
        if segment is None:
            segment, start = _Growing(drift), 0
            self._segments.append(segment)
        segment.append(prompt[start:], mask=0)
        segment.append(tokens.ids, mask=1)
        missing = np.full(len(tokens.ids), np.nan, dtype="<f4")
        segment.logprobs.append(missing if tokens.logprobs is None else tokens.logprobs)
        segment.versioned = segment.versioned and bool(response.versions)
        segment.versions.extend(_spans(response.versions, len(tokens.ids)))
        segment.chats.append(number)
        self._ends[number] = (segment, segment.length)

    def segments(self) -> tuple[Segment, ...]:
        """What to train on: all segments, or none when the sample is not trainable."""
        return () if self.reason else tuple(segment.freeze() for segment in self._segments)


def _lacks(prompt: Ids | None, response: ChatResponse) -> str:
    if response.tokens is None:
        return "the reply came without token ids"
    if prompt is None:
        return "the reply came without its prompt's token ids"
    if not response.tokens.complete:
        return "the reply came without all of its logprobs"
    return ""


def _spans(versions: Sequence[VersionSpan], count: int) -> list[VersionSpan]:
    if len(versions) == 1:
        return [VersionSpan(versions[0].version, count)]
    return list(versions)


def _common(one: Ids, other: Ids) -> int:
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    return int(differ.argmax()) if differ.any() else count
