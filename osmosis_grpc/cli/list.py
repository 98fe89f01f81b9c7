"""The list command: prints rollouts as a table for people, or as records."""

import math
import time

from osmosis_grpc.cli.list_table import table
from osmosis_grpc.cli.screen import Screen, wrapped
from osmosis_grpc.cli.source import Source, read_source, stopped_text
from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, list_record, rollout_filter
from osmosis_grpc.serve.json_output import Records
from osmosis_grpc.serve.startup import usage_error

PAGE = 500
"""A page has at most this many rollouts."""


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
            none = "no rollout matches" if where != RolloutFilter() else "there are no rollouts yet"
            out.say(f"{none} in {source.where}")
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
