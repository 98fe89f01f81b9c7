"""Reads the model calls and tool calls of a rollout from its events, because lists of rollouts lack them."""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from osmosis_grpc.protocol.types import RolloutInfo, events
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder
from osmosis_grpc.records.reading.history import sampled
from osmosis_grpc.records.reading.source_port import Source

Key = tuple[str, int]
"""The id and the attempt of a rollout."""
TRUNCATED = frozenset(("length", "max_tokens", "max_turns"))
"""The finish reasons of a reply or a rollout that a limit has cut off."""


class ToolTime(NamedTuple):
    """A tool call that has returned."""

    name: str
    seconds: float
    sample: str = ""
    """The sample of the turn that called the tool; empty if it is unknown, and then `turn` is 0."""
    turn: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """A turn whose prompt differs in a token from the turn before it."""

    sample: str
    turn: int
    index: int
    """The index in the prompt of the first token that differs."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one rollout. Times are in seconds."""

    model: tuple[float, ...] = ()
    tools: tuple[ToolTime, ...] = ()
    tokens: int = 0
    retries: int = 0
    truncated: bool = False
    """Whether a limit of tokens or turns has cut off a reply or the rollout."""
    drifts: tuple[Drift, ...] = ()

    @property
    def raised(self) -> int:
        """The number of tool calls that raised an error."""
        return sum(bool(tool.error) for tool in self.tools)


async def read_calls(source: Source, info: RolloutInfo) -> Calls:
    """Return the calls of a rollout, from its events."""
    model: list[float] = []
    tools: list[ToolTime] = []
    tokens = retries = 0
    truncated = False
    asked: dict[tuple[str, int], events.ChatRequested] = {}
    assemblers: dict[str, SegmentBuilder] = {}
    async with aclosing(source.events(info.rollout_id, info.attempt)) as trail:
        async for event in trail:
            kind = event.kind
            if isinstance(kind, events.ChatRequested):
                asked[kind.sample, kind.chat_number] = kind
            elif isinstance(kind, events.ChatAnswered):
                truncated = truncated or kind.response.finish_reason in TRUNCATED
                chat = asked.get((kind.sample, kind.chat_number))
                if chat is not None:
                    known = assemblers.setdefault(kind.sample, SegmentBuilder())
                    known.add(chat.chat_number, chat.parent_chat, kind.response, chat.purpose, forked=kind.forked)
                if not (kind.recorded_event or kind.forked):
                    model.append(kind.latency)
                    tokens += sampled(kind) or 0
            elif isinstance(kind, events.ToolReturned):
                tools.append(ToolTime(kind.name, kind.latency, kind.sample, kind.chat_number, kind.error))
            elif isinstance(kind, events.Resumed):  # the following events repeat all chats
                asked, assemblers = {}, {}
            elif isinstance(kind, events.Ended):
                truncated = truncated or kind.outcome.finish_reason in TRUNCATED
            elif isinstance(kind, events.Delivered):
                retries = max(0, kind.tries - 1)
    drifts = tuple(
        Drift(sample, segment.chats[0], segment.drift_index)
        for sample, known in assemblers.items()
        for segment in known.segments()
        if segment.drift_index is not None and segment.chats
    )
    return Calls(tuple(model), tuple(tools), tokens, retries, truncated, drifts)


async def read_all(source: Source, rows: Iterable[RolloutInfo], known: Mapping[Key, Calls]) -> dict[Key, Calls]:
    """Return the calls of rollouts by id and attempt. Known ones are not read again."""
    found = {}
    with source.snapshot():
        for info in rows:
            key = info.rollout_id, info.attempt
            found[key] = known[key] if key in known else await read_calls(source, info)
    return found
