"""The list command: prints rollouts as a table for people, or as records."""

import asyncio
import difflib
import math
import re
import time
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.cli.fork_origin import origin
from osmosis_grpc.cli.list_table import table
from osmosis_grpc.cli.screen import Screen, available_width, wrapped
from osmosis_grpc.cli.source import Source, open_source, stopped_text
from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.cli.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.types import RolloutFilter, RolloutInfo, RolloutState
from osmosis_grpc.types.failure_reasons import FailureReason

PAGE = 500
"""A page has at most this many rollouts."""
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of the command line, as they are given."""

    states: tuple[str, ...] = ()
    agent: str = ""
    group: str = ""
    reasons: tuple[str, ...] = ()
    min_reward: float | None = None
    max_reward: float | None = None
    since: str | None = None
    before: str | None = None
    stalled: str | None = None
    undelivered: bool = False
    forked_from: str = ""
    limit: int = 50
    """0 means all."""
    oldest: bool = False


def run_list(given: ListOptions, options: SourceOptions, *, json: bool) -> int:
    """Print the selected rollouts, and return the exit code."""
    where = rollout_filter("list", given, time.time())
    with records(json) as out:
        source = open_source("list", options)
        try:
            asyncio.run(_list(source, where, given, out))
        except SourceError as error:
            usage_error("list", str(error))
        except KeyboardInterrupt:
            return 130
    return 0


async def _list(source: Source, where: RolloutFilter, given: ListOptions, out: Records) -> None:
    limit = given.limit or math.inf
    shown: list[RolloutInfo] = []
    token, more = "", True
    async with source:
        as_of = await source.as_of()
        while more and len(shown) < limit:
            size = int(min(PAGE, limit - len(shown)))
            rows, token = await source.page(where, token, limit=size, newest_first=not given.oldest)
            now = time.time() if as_of is None else as_of
            for info in rows:
                out.write("rollout", **record(info, now))
            shown += rows
            more = bool(token)
    out.write("listed", rollouts=len(shown), more=more, as_of=as_of)
    if not shown:
        none = "no rollout matches" if where != RolloutFilter() else "there are no rollouts yet"
        out.say(f"{none} in {source.where}")
        return
    screen = Screen.of(out)
    for line in table(shown, time.time() if as_of is None else as_of, available_width()):
        out.say(line)
    if more:
        out.say(f"more rollouts match; --limit {2 * given.limit} shows more, and --limit 0 shows all")
    if as_of is not None and any(info.end_time is None or info.undelivered for info in shown):
        for line in wrapped(stopped_text(source.where, as_of), screen.width):
            screen.say(line, "note")


def record(info: RolloutInfo, now: float) -> dict[str, Any]:
    """Return the record of a rollout. Times are Unix seconds, durations are seconds."""
    end = info.end_time
    group = info.group
    return {
        "rollout_id": info.rollout_id,
        "attempt": info.attempt,
        "agent_loop": info.agent_loop,
        "state": info.state.value,
        "activity": None
        if end is not None
        else {"description": info.activity.description, "start_time": info.activity.start_time},
        "group": None if group is None else {"id": group.id, "index": group.index, "size": group.size},
        "forked_from": origin(info.fork),
        "chats": info.chats,
        "response_tokens": info.response_tokens,
        "elapsed": max(0.0, (now if end is None else end) - info.accept_time),
        "idle": None if info.progress_time is None else max(0.0, now - info.progress_time),
        "reward": info.reward,
        "failure_reason": info.failure_reason or None,
        "failure_summary": info.failure_summary or None,
        "accept_time": info.accept_time,
        "start_time": info.start_time,
        "end_time": end,
        "undelivered": info.undelivered,
        "last_event_number": info.last_event_number,
    }


def rollout_filter(command: str, given: ListOptions, now: float) -> RolloutFilter:
    """Return the filter of the options of a command. A wrong option ends the command with exit code 2."""
    since, before, stalled = (
        _seconds(command, name, getattr(given, name.removeprefix("--")))
        for name in ("--since", "--before", "--stalled")
    )
    if stalled is not None and stalled <= 0:
        usage_error(command, "--stalled: 0 is not a time greater than zero; name one, for example 5s")
    for name, value in (("--min-reward", given.min_reward), ("--max-reward", given.max_reward)):
        if value is not None and math.isnan(value):
            usage_error(command, f"{name}: nan is not a number; name one, for example 0.5")
    return RolloutFilter(
        states=tuple(_state(command, text) for text in given.states),
        group_id=given.group,
        undelivered=given.undelivered,
        forked_from=given.forked_from,
        agent_loop=given.agent,
        failure_reasons=tuple(_reason(command, text) for text in given.reasons),
        min_reward=given.min_reward,
        max_reward=given.max_reward,
        accepted_after=None if since is None else now - since,
        accepted_before=None if before is None else now - before,
        stalled=stalled,
    )


def _seconds(command: str, option: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        usage_error(command, f"{option}: {text!r} is not a time; name one such as 5s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def _state(command: str, text: str) -> RolloutState:
    try:
        return RolloutState(text.upper())
    except ValueError:
        usage_error(command, f"--state: {text!r} is not a state; the states are {', '.join(RolloutState).lower()}")


def _reason(command: str, text: str) -> str:
    name = text.upper().replace("-", "_")
    if name not in tuple(FailureReason):
        near = difflib.get_close_matches(name, FailureReason, 3, 0.6)
        which = f"do you mean {' or '.join(near)}?" if near else f"the reasons are {', '.join(FailureReason)}"
        usage_error(command, f"--reason: {text!r} is not a reason; {which}")
    return name
