"""The list command: prints rollouts as a table for people, or as records.

A column without values is left out. Ids are never cut, so that they can be copied.
"""

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.screen import Line, Screen, wrapped
from osmosis_grpc.cli.source import Source, nothing_in, read_source, stopped_text
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo, RolloutState
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, list_record, rollout_filter
from osmosis_grpc.records.reading.message_text import prompt_text
from osmosis_grpc.records.reading.phrases import INTERRUPTED, span
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, usage_error

PAGE = 500
"""A page has at most this many rollouts."""
MOST_CHARS = 12
"""The names of agents are cut to this many characters."""
MOST_LABEL = 20
LEAST_PROMPT, MOST_PROMPT = 12, 60
"""On a terminal, prompts take the remaining columns. With fewer than LEAST_PROMPT columns left, they are left out."""
MOST_ASKED = 100
"""Prompts and labels are read for at most this many rollouts."""
AT_ONCE = 16
"""At most this many rollouts are requested from a server at once."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A rollout of the table, with its prompt and label."""

    info: RolloutInfo
    interrupted: bool = False
    """Whether the rollout has not ended although no process runs it."""
    prompt: str = ""
    label: str = ""


def run_list(given: ListOptions, options: SourceOptions, *, json: bool) -> int:
    """Print the selected rollouts, and return the exit code."""
    where = chosen_filter("list", given)

    async def read(source: Source, out: Records) -> int:
        limit = given.limit or math.inf
        shown: list[Listed] = []
        token, more = "", True
        as_of = await source.as_of()
        while more and len(shown) < limit:
            size = int(min(PAGE, limit - len(shown)))
            rows, token = await source.page(where, token, limit=size, newest_first=not given.oldest)
            now = time.time() if as_of is None else as_of
            for info in rows:
                listed = Listed(info, interrupted=as_of is not None and info.end_time is None)
                out.write("rollout", **list_record(info, now), interrupted=listed.interrupted)
                shown.append(listed)
            more = bool(token)
        out.write("listed", rollouts=len(shown), more=more, as_of=as_of)
        if not shown:
            out.say(nothing_in(source.where, where))
            return 0
        screen = Screen.of(out)
        if not json:
            shown[:MOST_ASKED] = await _asked(source, shown[:MOST_ASKED])
        for row in table(shown, time.time() if as_of is None else as_of, screen.width):
            screen.say(row)
        if more:
            out.say(f"more rollouts match; --limit {2 * given.limit} shows more, and --limit 0 shows all")
        if as_of is not None and any(each.interrupted or each.info.undelivered for each in shown):
            for line in wrapped(stopped_text(source.where, as_of), screen.width):
                screen.say(line, "note")
        return 0

    return read_source("list", options, read, json=json)


async def _asked(source: Source, rows: Sequence[Listed]) -> list[Listed]:
    """Return the rows with their prompts and labels, which stay empty for a damaged rollout."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def read(row: Listed) -> Listed:
        async with turns:
            try:
                request, _ = await source.request(row.info.rollout_id, row.info.attempt)
            except SourceError:
                return row
        label = (request.label or "").partition("\n")[0]
        return replace(row, prompt=prompt_text(request.messages), label=label[:MOST_LABEL])

    with source.snapshot():
        return await asyncio.gather(*map(read, rows))


def chosen_filter(command: str, given: ListOptions) -> RolloutFilter:
    """Convert the options of a command to a filter. A wrong option ends the command with exit code 2."""
    try:
        return rollout_filter(given, time.time())
    except FilterError as error:
        usage_error(command, f"--{error.option}: {error}")


def table(rows: Sequence[Listed], now: float, width: int) -> Iterator[Line]:
    """Yield the lines of a table. Rollouts that failed, or whose reward is zero or less, are coloured.

    Lines below a row tell what the rollout is doing, what it was forked from, and why it failed.

    Args:
        rows: The rollouts.
        now: The time until which unfinished rollouts ran, in Unix seconds.
        width: The width of the screen, in columns.
    """
    cells = {name: [printable(cell(row, now)) for row in rows] for name, cell in COLUMNS.items()}
    cells["REWARD"] = rewards([row.info.reward for row in rows])
    cells = {name: column for name, column in cells.items() if any(column)}
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    if "PROMPT" in cells:
        left = width - sum(widths[name] + len(GAP) for name in cells if name != "PROMPT")
        most = min(MOST_PROMPT, left) if sys.stdout.isatty() else MOST_PROMPT
        if most < LEAST_PROMPT:
            del cells["PROMPT"]
        else:
            cells["PROMPT"] = [_cut(text, most) for text in cells["PROMPT"]]
    yield Line.of(GAP.join(name.ljust(widths[name]) for name in cells).rstrip())
    for at, row in enumerate(rows):
        line = GAP.join(
            column[at].rjust(widths[name]) if name in NUMBERS else column[at].ljust(widths[name])
            for name, column in cells.items()
        ).rstrip()
        yield Line.of(line, _kind(row.info))
        for text in _below(row.info, now):
            yield from (Line.of(piece, indent=2) for piece in wrapped(text, width - 2))


def rewards(values: Sequence[float | None]) -> list[str]:
    """Format rewards with the same number of decimals, so that 0 and 1 are easy to tell apart."""
    short = ["" if value is None else f"{value:.4g}" for value in values]
    decimals = max([1, *(len(text.partition(".")[2]) for text in short if "e" not in text)])
    return [
        text if value is None or "e" in text or not math.isfinite(value) else f"{value:.{decimals}f}"
        for text, value in zip(short, values, strict=True)
    ]


def _kind(info: RolloutInfo) -> str:
    if info.state in (RolloutState.FAILED, RolloutState.DEADLINE_EXCEEDED):
        return "error"
    return "call" if info.reward is not None and info.reward <= 0 else ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _below(info: RolloutInfo, now: float) -> Iterator[str]:
    if info.end_time is None or info.undelivered:
        yield f"{info.activity.description} {span(now - info.activity.start_time)}"
    if info.fork is not None:
        yield f"fork of {info.fork}"
    if info.failure_reason or info.failure_summary:
        yield ": ".join(filter(None, (info.failure_reason, info.failure_summary)))


def _id(row: Listed, now: float) -> str:
    info = row.info
    return info.rollout_id + (f" (attempt {info.attempt})" if info.attempt > 1 else "")


def _elapsed(row: Listed, now: float) -> str:
    info = row.info
    return span((now if info.end_time is None else info.end_time) - info.accept_time)


def _idle(row: Listed, now: float) -> str:
    return "" if row.info.progress_time is None else span(now - row.info.progress_time)


COLUMNS: dict[str, Callable[[Listed, float], str]] = {
    "ID": _id,
    "AGENT": lambda row, now: _cut(row.info.agent_loop, MOST_CHARS),
    "STATE": lambda row, now: INTERRUPTED if row.interrupted else row.info.state.value,
    "CHATS": lambda row, now: str(row.info.chats),
    "ELAPSED": _elapsed,
    "IDLE": _idle,
    "REWARD": lambda row, now: "",
    "TOKENS": lambda row, now: f"{row.info.prompt_tokens}/{row.info.response_tokens}",
    "FINISH": lambda row, now: row.info.finish_reason,
    "LABEL": lambda row, now: row.label,
    "PROMPT": lambda row, now: row.prompt,
}
NUMBERS = ("CHATS", "ELAPSED", "IDLE", "REWARD", "TOKENS")
GAP = "  "
