"""The page of findings: what users need to see first, such as failures, slow tools, token drift, and equal rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from osmosis_grpc.protocol.types import RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.trainer.score_statistics import all_equal
from osmosis_grpc.viewer.calls import Calls, Drift, Key, ToolTime
from osmosis_grpc.viewer.pages import Pages, filter_values, options_in
from osmosis_grpc.viewer.reads import MOST_ROWS, Listed, Shared

STALLED = 60.0
"""An unfinished rollout has stalled after this many seconds without an event."""
READ = {True: 200, False: 40}
"""How many of the newest ended rollouts have their calls read, for a folder (True) and for a server (False)."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Rollouts that failed for the same reason with the same message, the newest first."""

    reason: str
    summary: str
    rows: tuple[RolloutInfo, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """All calls of a tool. Times are in seconds."""

    name: str
    calls: int
    total: float
    p50: float
    p95: float
    slowest: ToolTime
    slowest_in: Key
    raised: int
    raised_first: tuple[Key, ToolTime] | None


@dataclass(frozen=True, slots=True)
class Equal:
    """A group whose rollouts all ended with the same reward, so their group-relative advantage is zero."""

    group: str
    rollouts: int
    reward: float


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings in some rollouts."""

    failures: tuple[Failures, ...]
    tools: tuple[Tool, ...]
    drifted: tuple[tuple[RolloutInfo, tuple[Drift, ...]], ...]
    equal: tuple[Equal, ...]
    groups: int
    truncated: tuple[RolloutInfo, ...]
    stalled: tuple[RolloutInfo, ...]


def findings(rows: Sequence[RolloutInfo], calls: Mapping[Key, Calls], now: float) -> Findings:
    """Return the findings in rollouts, which are given newest first. `calls` has the calls of some of them."""
    read = [(info, calls[key]) for info in rows if (key := (info.rollout_id, info.attempt)) in calls]
    equal, groups = _equal(rows)
    return Findings(
        failures=_failures(rows),
        tools=_tools(read),
        drifted=tuple((info, each.drifts) for info, each in read if each.drifts),
        equal=equal,
        groups=groups,
        truncated=tuple(info for info, each in read if each.truncated),
        stalled=tuple(
            info
            for info in rows
            if info.state is RolloutState.RUNNING and now - (info.progress_time or info.accept_time) > STALLED
        ),
    )


def _failures(rows: Sequence[RolloutInfo]) -> tuple[Failures, ...]:
    found: dict[tuple[str, str], list[RolloutInfo]] = {}
    for info in rows:
        if info.failure_reason:
            found.setdefault((info.failure_reason, info.failure_summary), []).append(info)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return tuple(Failures(reason, summary, tuple(each)) for (reason, summary), each in ordered)


def _tools(read: Sequence[tuple[RolloutInfo, Calls]]) -> tuple[Tool, ...]:
    found: dict[str, list[tuple[Key, ToolTime]]] = {}
    for info, each in read:
        for tool in each.tools:
            found.setdefault(tool.name, []).append(((info.rollout_id, info.attempt), tool))
    made = []
    for name, used in found.items():
        times = sorted(tool.seconds for _, tool in used)
        key, slowest = max(used, key=lambda item: item[1].seconds)
        raised = [item for item in used if item[1].error]
        p50, p95 = (times[max(0, -(-len(times) * part // 100) - 1)] for part in (50, 95))
        first = raised[0] if raised else None
        made.append(Tool(name, len(used), sum(times), p50, p95, slowest, key, len(raised), first))
    return tuple(sorted(made, key=lambda tool: -tool.total))


def _equal(rows: Sequence[RolloutInfo]) -> tuple[tuple[Equal, ...], int]:
    groups: dict[str, list[RolloutInfo]] = {}
    for info in rows:
        if info.group is not None:
            groups.setdefault(info.group.id, []).append(info)
    found, counted = [], 0
    for name, members in groups.items():
        rewards = [info.reward for info in members if info.reward is not None]
        if len(rewards) < 2:
            continue
        counted += 1
        if all_equal(rewards) and all(info.end_time is not None for info in members):
            found.append(Equal(name, len(members), rewards[0]))
    return tuple(found), counted


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    listed: Listed
    findings: Findings
    read: int


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads

    async def read(options: ListOptions) -> Found:
        listed = await reads.listed(options)
        ended = [info for info in listed.rows if info.end_time is not None]
        calls = await reads.calls(ended[: READ[reads.is_folder]])
        found = await reads.aside(lambda: findings(listed.rows, calls, listed.now))
        return Found(listed, found, len(calls))

    def values(options: ListOptions, found: Found) -> dict[str, Any]:
        shown = {"found": found.findings, "listed": found.listed, "read": found.read}
        return {**shown, **filter_values(options, MOST_ROWS)}

    pages.follow(
        routes,
        "findings",
        asked=lambda request: options_in(request, MOST_ROWS),
        read=Shared(read).get,
        values=values,
        key=lambda found: (found.listed.rows, len(found.findings.stalled)),
        ended=lambda found: found.listed.stopped,
        calm=True,
    )
    return routes
