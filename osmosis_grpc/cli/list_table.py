"""Formats rollouts as a table. A column without values is left out. Ids stay whole, so that they can be copied."""

from collections.abc import Callable, Iterator, Sequence

from osmosis_grpc.cli.screen import wrapped
from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.phrases import span

MOST_CHARS = 12
"""The names of agents are cut to this many characters."""


def table(rows: Sequence[RolloutInfo], now: float, width: int) -> Iterator[str]:
    """Yield the lines of a table.

    What a rollout does, what it is a fork of and why it failed are in lines below its row.

    Args:
        rows: The rollouts.
        now: The time until which unfinished rollouts ran, in Unix seconds.
        width: The columns at which the lines below rows are wrapped.
    """
    cells = {name: [printable(cell(info, now)) for info in rows] for name, cell in COLUMNS.items()}
    cells = {name: column for name, column in cells.items() if any(column)}
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    yield "  ".join(name.ljust(widths[name]) for name in cells).rstrip()
    for at, info in enumerate(rows):
        yield "  ".join(
            column[at].rjust(widths[name]) if name in NUMBERS else column[at].ljust(widths[name])
            for name, column in cells.items()
        ).rstrip()
        for text in _below(info, now):
            yield from (f"  {piece}" for piece in wrapped(text, width - 2))


def _below(info: RolloutInfo, now: float) -> Iterator[str]:
    if info.end_time is None or info.undelivered:
        yield f"{info.activity.description} {span(now - info.activity.start_time)}"
    if info.fork is not None:
        yield f"fork of {info.fork}"
    if info.failure_reason or info.failure_summary:
        yield ": ".join(filter(None, (info.failure_reason, info.failure_summary)))


def _agent(info: RolloutInfo, now: float) -> str:
    name = info.agent_loop
    return name if len(name) <= MOST_CHARS else f"{name[: MOST_CHARS - 3]}..."


COLUMNS: dict[str, Callable[[RolloutInfo, float], str]] = {
    "ID": lambda info, now: info.rollout_id + (f" (attempt {info.attempt})" if info.attempt > 1 else ""),
    "AGENT": _agent,
    "STATE": lambda info, now: info.state.value,
    "CHATS": lambda info, now: str(info.chats),
    "ELAPSED": lambda info, now: span((now if info.end_time is None else info.end_time) - info.accept_time),
    "IDLE": lambda info, now: "" if info.progress_time is None else span(now - info.progress_time),
    "REWARD": lambda info, now: "" if info.reward is None else f"{info.reward:.4g}",
    "TOKENS": lambda info, now: f"{info.prompt_tokens}/{info.response_tokens}",
    "FINISH": lambda info, now: info.finish_reason,
}
NUMBERS = ("CHATS", "ELAPSED", "IDLE", "REWARD", "TOKENS")
