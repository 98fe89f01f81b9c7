"""Reads what lists do not have: the model calls and tool calls of a rollout, from its events."""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from osmosis_grpc.reading.history import sampled
from osmosis_grpc.reading.source_port import Source
from osmosis_grpc.types import RolloutInfo, events

Key = tuple[str, int]
"""The id and the attempt of a rollout."""
TRUNCATED = frozenset(("length", "max_tokens", "max_turns"))
"""The finish reasons of a reply or a rollout that a limit has cut."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one rollout. Times are in seconds."""

    model: tuple[float, ...] = ()
    """The latencies of the replies. Replies that were read from the journal are left out."""
    tools: tuple[tuple[str, float], ...] = ()
    tokens: int = 0
    """The sampled tokens of these replies."""
    retries: int = 0
    """Deliveries of the outcome after the first one."""
    raised: int = 0
    """The number of tool calls that raised an error."""
    truncated: bool = False
    """Whether a limit of tokens or turns has cut a reply or the rollout."""


async def read_calls(source: Source, info: RolloutInfo) -> Calls:
    """Return the calls of a rollout, from its events."""
    model: list[float] = []
    tools: list[tuple[str, float]] = []
    tokens = retries = raised = 0
    truncated = False
    async with aclosing(source.events(info.rollout_id, info.attempt)) as trail:
        async for event in trail:
            kind = event.kind
            if isinstance(kind, events.ChatAnswered):
                truncated = truncated or kind.response.finish_reason in TRUNCATED
                if not (kind.recorded_event or kind.forked):
                    model.append(kind.latency)
                    tokens += sampled(kind) or 0
            elif isinstance(kind, events.ToolReturned):
                tools.append((kind.name, kind.latency))
                raised += bool(kind.error)
            elif isinstance(kind, events.Ended):
                truncated = truncated or kind.outcome.finish_reason in TRUNCATED
            elif isinstance(kind, events.Delivered):
                retries = max(0, kind.tries - 1)
    return Calls(tuple(model), tuple(tools), tokens, retries, raised, truncated)


async def read_all(source: Source, rows: Iterable[RolloutInfo], known: Mapping[Key, Calls]) -> dict[Key, Calls]:
    """Return the calls of rollouts by id and attempt. Those that are known are not read again."""
    found = {}
    with source.snapshot():
        for info in rows:
            key = info.rollout_id, info.attempt
            found[key] = known[key] if key in known else await read_calls(source, info)
    return found
