"""The list command: prints rollouts as a table for people, or as records.

A column without values is left out. Ids stay whole, so that they can be copied.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.screen import Screen, wrapped
from osmosis_grpc.cli.source import Source, nothing_in, read_source, stopped_text
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, list_record, rollout_filter
from osmosis_grpc.records.reading.phrases import span
from osmosis_grpc.serve.json_output import Records, usage_error

PAGE = 500
"""A page has at most this many rollouts."""
MOST_CHARS = 12
"""The names of agents are cut to this many characters."""


def run_list(given: ListOptions, options: SourceOptions, *, json: bool) -> int:
    """Print the selected rollouts, and return the exit code."""
    where = chosen_filter("list", given)

    async def read(source: Source, out: Records) -> int:
        limit = given.limit or math.inf
        shown: list[RolloutInfo] = []
        token, more = "", True
        as_of = await source.as_of()
        while more and len(shown) < limit:
            size = int(min(PAGE, limit - len(shown)))
            rows, token = await source.page(where, token, limit=size, newest_first=not given.oldest)
            now = time.time() if as_of is None else as_of
            for info in rows:
                out.write("rollout", **list_record(info, now))
            shown += rows
            more = bool(token)
        out.write("listed", rollouts=len(shown), more=more, as_of=as_of)
        if not shown:
            out.say(nothing_in(source.where, where))
            return 0
        screen = Screen.of(out)
        for line in table(shown, time.time() if as_of is None else as_of, screen.width):
            out.say(line)
        if more:
            out.say(f"more rollouts match; --limit {2 * given.limit} shows more, and --limit 0 shows all")
        if as_of is not None and any(info.end_time is None or info.undelivered for info in shown):
            for line in wrapped(stopped_text(source.where, as_of), screen.width):
                screen.say(line, "note")
        return 0

    return read_source("list", options, read, json=json)


def chosen_filter(command: str, given: ListOptions) -> RolloutFilter:
    """Return the filter of the options of a command. A wrong option ends the command with exit code 2."""
    try:
        return rollout_filter(given, time.time())
    except FilterError as error:
        usage_error(command, f"--{error.option}: {error}")


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
