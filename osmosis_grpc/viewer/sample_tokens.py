"""Lays out the tokens of one sample for its page: all segments in a row, with values for each token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import Sample, Segment
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder
from osmosis_grpc.records.reading.history import History
from osmosis_grpc.records.reading.phrases import split_text
from osmosis_grpc.viewer.reads import Loaded

WINDOW = 2048
"""The most tokens that a page requests at once."""
STRIP = 1024
"""The most points of the strip, which gives an overview of all tokens."""
PROMPT, REPLY, TOOL = "prompt", "reply", "tool"
TRAINER_LOGPROBS, ENTROPIES = 1, 2
"""Bits that say which further columns follow the ids and logprobs of a window."""


@dataclass(frozen=True, slots=True)
class SampleTokens:
    """The tokens of a sample. The arrays have shape (n,). A missing value is NaN."""

    segments: tuple[Segment, ...]
    starts: tuple[int, ...]
    ids: Any
    """uint32."""
    logprobs: Any
    """float32; NaN where the mask is 0."""
    trainer_logprobs: Any | None
    """float32, from the newest annotation that has them; None if none has."""
    entropies: Any | None
    """float32, from the newest annotation that has them; None if none has."""

    def __len__(self) -> int:
        return len(self.ids)

    def window(self, first: int, count: int) -> bytes:
        """Return up to `count` tokens from index `first` on, as little-endian arrays with 4 bytes for each value.

        Four uint32 come first: the first index, the number of tokens in the window, the bits of further columns
        (TRAINER_LOGPROBS, ENTROPIES), and the number of all tokens. Then follow the ids (uint32) and the logprobs
        (float32) of the window, and the further columns (float32) in the order of their bits.
        """
        part = slice(first, first + count)
        further = [(TRAINER_LOGPROBS, self.trainer_logprobs), (ENTROPIES, self.entropies)]
        bits = sum(bit for bit, values in further if values is not None)
        head = np.array([first, len(self.ids[part]), bits, len(self)], dtype="<u4")
        columns = [self.logprobs, *(values for _, values in further if values is not None)]
        return b"".join([head.tobytes(), self.ids[part].tobytes(), *(each[part].tobytes() for each in columns)])

    @property
    def step(self) -> int:
        """How many tokens one point of the strip covers."""
        return max(1, -(-len(self) // STRIP))

    def strip(self) -> dict[str, Any]:
        """Return the mean logprob, the lowest logprob and the mean entropy of each step of tokens; null if unknown."""
        step = self.step
        return {
            "step": step,
            "mean": _steps(self.logprobs, step, np.mean),
            "lowest": _steps(self.logprobs, step, np.min),
            "entropy": None if self.entropies is None else _steps(self.entropies, step, np.mean),
        }


def tokens_of(loaded: Loaded, name: str, sample: Sample) -> SampleTokens:
    """Return the tokens of a sample, from the outcome or, before the end, from the answered chats."""
    segments = sample.segments
    if not segments or any(segment.referred for segment in segments):
        segments = _assembled(loaded.history, name)
    lengths = [len(segment.ids) for segment in segments]
    starts = tuple(int(start) for start in np.cumsum([0, *lengths])[:-1])
    ids = np.concatenate([np.empty(0, "<u4"), *(segment.ids for segment in segments)]).astype("<u4", copy=False)
    logprobs = [_spread(segment, segment.logprobs) for segment in segments]
    return SampleTokens(
        segments,
        starts,
        ids,
        _joined(logprobs),
        _annotated(loaded.history, name, segments, "logprobs"),
        _annotated(loaded.history, name, segments, "entropies"),
    )


def layout(tokens: SampleTokens, history: History, name: str) -> dict[str, Any]:
    """Return the data of the page except the windows: the segments, the runs of tokens, and the strip.

    A run has the index of its first token, its kind, the number of its turn, and the version of the policy.
    """
    return {
        "tokens": len(tokens),
        "window": WINDOW,
        "segments": list(segment_facts(tokens, history, name)),
        "runs": [
            run
            for segment, start in zip(tokens.segments, tokens.starts, strict=True)
            for run in _runs(segment, start, history, name)
        ],
        "strip": tokens.strip(),
    }


def _assembled(history: History, name: str) -> tuple[Segment, ...]:
    assembler = SegmentBuilder()
    for (sample, number), chat in sorted(history.chats.items(), key=lambda item: item[0][1]):
        if sample == name and chat.answered is not None:
            answer, asked = chat.answered, chat.asked
            assembler.add(number, asked.parent_chat, answer.response, asked.purpose, forked=answer.forked)
    return assembler.segments()


def segment_facts(tokens: SampleTokens, history: History, name: str) -> Iterator[dict[str, Any]]:
    """Yield the facts of each segment. `is` is the token that drifted, and `was` the earlier chat's token there."""
    for segment, start in zip(tokens.segments, tokens.starts, strict=True):
        drift = segment.drift_index
        was = None if drift is None else _earlier(tokens.segments, history, name, segment, drift)
        yield {
            "start": start,
            "tokens": len(segment.ids),
            "sampled": segment.sampled,
            "turns": list(segment.chats),
            "drift": drift,
            "why": split_text(segment),
            "was": was,
            "is": None if drift is None or drift >= len(segment.ids) else int(segment.ids[drift]),
        }


def _earlier(segments: Sequence[Segment], history: History, name: str, segment: Segment, index: int) -> int | None:
    """Return the token at an index of the chat that a segment's first chat continues, or None if it is unknown."""
    chat = history.chats.get((name, segment.chats[0])) if segment.chats else None
    if chat is None:
        return None
    before = next((each for each in segments if chat.asked.parent_chat in each.chats), None)
    return int(before.ids[index]) if before is not None and index < len(before.ids) else None


def _runs(segment: Segment, start: int, history: History, name: str) -> Iterator[list[Any]]:
    chats = segment.chats if sum(map(bool, segment.mask_runs[1::2])) == len(segment.chats) else ()
    versions = [(span.version, span.tokens) for span in segment.versions]
    at, reply = start, 0
    for index, length in enumerate(segment.mask_runs):
        if not length:
            continue
        turn = chats[reply] if reply < len(chats) else 0
        if index % 2:
            for version, count in _taken(versions, length):
                yield [at, REPLY, turn, version]
                at += count
            reply += 1
            continue
        yield [at, TOOL if index and _has_tool(history, name, turn) else PROMPT, turn, ""]
        at += length


def _taken(versions: list[tuple[str, int]], length: int) -> Iterator[tuple[str, int]]:
    """Remove the versions of the next `length` sampled tokens from the list, and yield them with their counts."""
    if not versions:
        yield "", length
        return
    while length:
        version, known = versions[0]
        count = min(known, length)
        length -= count
        if count == known:
            versions.pop(0)
        else:
            versions[0] = version, known - count
        if count:
            yield version, count


def _has_tool(history: History, name: str, turn: int) -> bool:
    chat = history.chats.get((name, turn))
    return chat is not None and any(message.get("role") == "tool" for message in chat.asked.messages)


def _annotated(history: History, name: str, segments: Sequence[Segment], field: str) -> Any | None:
    """Return the newest annotated values of each segment, aligned with the tokens; None if there are none."""
    found: dict[int, Any] = {}
    for event in history.annotated:
        for each in event.annotation.segments:
            if each.sample == name and len(getattr(each, field)):
                found[each.index] = getattr(each, field)
    if not found:
        return None
    return _joined([_spread(segment, found.get(index)) for index, segment in enumerate(segments)])


def _spread(segment: Segment, values: Any | None) -> Any:
    """Return the values of the sampled tokens, aligned with all tokens of a segment; NaN elsewhere."""
    aligned = np.full(len(segment.ids), np.nan, dtype="<f4")
    if values is not None and len(values) == segment.sampled:
        aligned[segment.mask()] = values
    return aligned


def _joined(parts: Sequence[Any]) -> Any:
    return np.concatenate([np.empty(0, "<f4"), *parts])


def _steps(values: Any, step: int, of: Any) -> list[float | None]:
    """Reduce each step of values to a number with the function `of`. Ignore NaN."""
    parts = (values[first : first + step] for first in range(0, len(values), step))
    known = (part[~np.isnan(part)] for part in parts)
    return [round(float(of(part)), 4) if len(part) else None for part in known]
