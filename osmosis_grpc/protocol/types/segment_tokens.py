"""A segment under construction: its tokens are appended, split off and joined before it becomes a Segment."""

from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from osmosis_grpc.protocol.types.extras import Extras, Part, bare_parts, cut, gather
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.samples import Segment, SplitReason
from osmosis_grpc.protocol.types.tokens import Ids, Logprobs, VersionSpan

NO_IDS: Ids = np.empty(0, dtype="<u4")
NO_LOGPROBS: Logprobs = np.empty(0, dtype="<f4")


@dataclass(slots=True)
class GrowingSegment:
    """A segment under construction. New ids are kept as the bytes of separate pieces, and ids() joins the pieces."""

    split_by: SplitReason
    drift_index: int | None = None
    outside: SplitReason | None = None
    """Why the segment is not in the outcome: its chats are a judge's, or the original of a fork has them."""
    pieces: list[bytes] = field(default_factory=list)
    """Bytes, because each array would take 112 bytes more."""
    length: int = 0
    logprobs: list[Logprobs] = field(default_factory=list)
    """The logprobs of each chat; an empty array if they are not kept."""
    runs: list[int] = field(default_factory=list)
    versions: list[tuple[VersionSpan, ...]] = field(default_factory=list)
    """The versions of each chat; an empty tuple if they are unknown."""
    chats: list[int] = field(default_factory=list)
    parts: list[Part] | None = None
    """The extras of all tokens; None while no token has extras. freeze() joins them."""
    dropped: bool = False
    start: int = 0
    """The number of leading tokens whose ids are not kept."""
    _array: Ids = field(default_factory=lambda: NO_IDS)
    """Ids from `start` on. There is space for more."""
    _filled: int = 0

    def append(self, ids: Ids, mask: int, extras: Extras = NOTHING, first: int = 0) -> None:
        """Append tokens. Their extras are the rows of `extras` from row `first` on."""
        count, runs = len(ids), self.runs
        if not count and runs:
            return
        if extras and self.parts is None:
            self.parts = bare_parts(runs)
        if self.parts is not None and count:
            self.parts.append(Part(extras, first, first + count, mask))
        self.pieces.append(_bytes_of(ids))
        self.length += count
        _add_run(runs, count, mask)

    def skip(self, count: int) -> None:
        """Append tokens of a prompt whose ids are not kept."""
        self.length += count
        _add_run(self.runs, count, 0)
        self.forget()

    def forget(self) -> None:
        """Drop the ids of all tokens so far."""
        self.pieces.clear()
        self._array, self._filled, self.start = NO_IDS, 0, self.length

    def split(self, chat: int, end: int) -> "GrowingSegment":
        """Remove the chats after `chat`, whose tokens end at `end`. Returns a segment with the removed chats.

        In the returned segment, all tokens before `end` belong to a prompt.
        """
        kept, at, runs = self.chats.index(chat) + 1, 0, self.runs
        rest = GrowingSegment(SplitReason.BRANCH, outside=self.outside, length=self.length)
        if self.start:
            rest.forget()
            self.length = end
            self.forget()
        else:
            rest._array, rest._filled = self.ids(0, self.length), self.length
            self._array, self._filled, self.length = rest._array[:end].copy(), end, end
        self.runs = [0]
        _add_run(rest.runs, end, 0)
        for number, count in enumerate(runs):
            before = min(count, max(0, end - at))
            if before:
                _add_run(self.runs, before, number % 2)
            if count > before:
                _add_run(rest.runs, count - before, number % 2)
            at += count
        if self.parts is not None:
            rest.parts = cut(self.parts, 0, end) + cut(self.parts, end, rest.length, as_prompt=False)
            self.parts = cut(self.parts, 0, end, as_prompt=False)
        rest.chats, self.chats = self.chats[kept:], self.chats[:kept]
        rest.logprobs, self.logprobs = self.logprobs[kept:], self.logprobs[:kept]
        rest.versions, self.versions = self.versions[kept:], self.versions[:kept]
        return rest

    def join(self, other: "GrowingSegment") -> None:
        """Append the tokens of a segment that begins with all tokens of this one."""
        end, at = self.length, 0
        if self.parts is not None or other.parts is not None:
            more = bare_parts(other.runs) if other.parts is None else other.parts
            own = bare_parts(self.runs) if self.parts is None else self.parts
            self.parts = own + cut(more, end, other.length, as_prompt=False)
        kept = not self.start and not other.start
        if kept:
            self.pieces.append(other.ids(end, other.length).tobytes())
        self.length = other.length
        if not kept:
            self.forget()
        for number, count in enumerate(other.runs):
            at += count
            if at > end:
                _add_run(self.runs, min(count, at - end), number % 2)
        self.logprobs += other.logprobs
        self.versions += other.versions
        self.chats += other.chats

    def ids(self, start: int, end: int) -> Ids:
        """Return a view of the ids from `start` to `end`, which are kept. The array doubles when it is full."""
        assert start >= self.start
        if self.pieces:
            count = self.length - self.start
            if count > len(self._array):
                grown = np.empty(max(count, 2 * len(self._array)), dtype="<u4")
                grown[: self._filled] = self._array[: self._filled]
                self._array = grown
            self._array[self._filled : count] = np.frombuffer(b"".join(self.pieces), "<u4")
            self._filled = count
            self.pieces.clear()
        return self._array[start - self.start : end - self.start]

    def freeze(self, split: SplitReason | None) -> Segment:
        ids = self.ids(0, self.length).copy()
        logprobs = np.concatenate(self.logprobs) if self.logprobs else np.empty(0, dtype="<f4")
        ids.flags.writeable = logprobs.flags.writeable = False
        versions = tuple(chain.from_iterable(self.versions)) if all(self.versions) else ()
        whole = replace(self.reference(split), ids=ids, logprobs=logprobs, versions=versions)
        if self.parts is None:
            return whole
        sampled, of_tokens, incomplete = gather(self.parts)
        return replace(whole, sampled_extras=sampled, token_extras=of_tokens, incomplete_extras=incomplete)

    def reference(self, split: SplitReason | None) -> Segment:
        return Segment(
            ids=NO_IDS,
            logprobs=NO_LOGPROBS,
            mask_runs=tuple(self.runs),
            chats=tuple(self.chats),
            drift_index=self.drift_index,
            dropped=self.dropped,
            split=split,
        )


def _add_run(runs: list[int], count: int, mask: int) -> None:
    """Add tokens to run lengths.

    A run is a stretch of tokens with the same mask. The first run has mask 0, the second has mask 1, and so on. So the
    last run has mask 0 if the number of runs is odd, and mask 1 if the number is even.
    """
    if mask and not runs:
        runs.append(0)
    if len(runs) % 2 == mask:
        runs.append(count)
    else:
        runs[-1] += count


def _bytes_of(ids: Ids) -> bytes:
    """Return the bytes of ids. Arrays from the wire are views of their own bytes, which need no copy."""
    base: object = ids.base
    return base if isinstance(base, bytes) and len(base) == ids.nbytes else ids.tobytes()
