"""Formats the tokens of a sample: its segments, and in each segment the runs of prompt and sampled tokens."""

from collections.abc import Iterator

from osmosis_grpc.cli.screen import Line, wrapped
from osmosis_grpc.protocol.types import Sample, Segment
from osmosis_grpc.records.reading.phrases import counted, split_text


def token_lines(sample: Sample, width: int) -> Iterator[Line]:
    """Yield the lines of a sample's tokens. The ids of a run are cut at `width` columns."""
    if not sample.segments:
        yield Line.of(f"no tokens{f': {sample.not_trainable_reason}' if sample.not_trainable_reason else ''}", "note")
    for number, segment in enumerate(sample.segments, 1):
        chats = ", ".join(map(str, segment.chats))
        text = f"segment {number}: {counted(len(segment.ids), 'token')}, {segment.sampled} sampled, turns {chats}"
        text += ", dropped by the agent" if segment.dropped else ""
        versions = ", ".join(f"{span.version} ({span.tokens})" for span in segment.versions if span.version)
        for piece in wrapped(text + (f", versions {versions}" if versions else ""), width):
            yield Line.of(piece, "turn")
        why = split_text(segment)
        for piece in wrapped(f"a new segment, because {why}", width - 2) if why else ():
            yield Line.of(piece, "note", 2)
        yield from (line.indented(2) for line in _runs(segment, width - 2))


def _runs(segment: Segment, width: int) -> Iterator[Line]:
    start = used = 0
    for index, length in enumerate(segment.mask_runs):
        of_policy = index % 2 == 1
        ids = segment.ids[start : start + length]
        label = f"{start:>6} {'sampled' if of_policy else 'prompt ':7} {length:>6}"
        if of_policy and length:
            label += f", mean logprob {segment.logprobs[used : used + length].mean():.3f}"
            used += length
        start += length
        if length:
            text = f"{label}: {' '.join(map(str, ids[:40].tolist()))}"
            cut = text if len(text) <= width and length <= 40 else text[: width - 4].rpartition(" ")[0] + " ..."
            yield Line.of(cut)
