"""The page of curves. For each step, it shows rates, and a histogram of rewards with links to the rollouts."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.protocol.types import FailureReason, RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of
from osmosis_grpc.viewer.calls import Calls, Key
from osmosis_grpc.viewer.pages import Pages, options_in
from osmosis_grpc.viewer.reads import Listed, Shared
from osmosis_grpc.viewer.rollouts import ROWS

MOST_BINS = 12
"""The most bins. If there are this many different rewards or fewer, each has its own bin."""
SHADES = 5
"""The number of shades for bins in the style sheet."""
OWN = {"steps": "20", "pass": "1", "by": ""}
"""The parameters of the address that are not filters of `list`, with their defaults."""
MOST_STEPS = 40
MOST_TRAINER_STEPS = 400
BY = ("", "trainer", "acceptance")
"""How to divide the rollouts: by the trainer's steps, or by acceptance. Empty means the trainer's steps if known."""
FULL = 4
"""The least rollouts of a step, unless the address sets the number of steps."""
CURVES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("mean_reward", "mean reward", {}),
    ("pass_rate", "pass rate", {}),
    ("turns", "turns", {}),
    ("tokens", "tokens of replies", {}),
    ("tool_failures", "failed by a tool", {"reason": FailureReason.TOOL_EXCEPTION.lower()}),
    ("out_of_time", "out of time", {"state": RolloutState.DEADLINE_EXCEEDED.lower()}),
)
"""The fields of a step that have a curve, their names for people, and the filter of the rollouts that they count."""
CALL_CURVES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("truncated", "truncated", {}),
    ("tool_errors", "tool calls that raised", {}),
)
"""The same for fields that are computed from the calls of rollouts. The page loads these curves later."""
RATES = ("pass_rate", "truncated", "tool_errors", "tool_failures", "out_of_time")
"""The fields that are fractions of 1."""
READ = {True: 400, False: 40}
"""The most rollouts whose calls are read for the curves, for a folder (True) and for a server (False)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The rollouts of a step with rewards from `low` to `high`, both inclusive. Both values occur as rewards."""

    count: int
    low: float = 0.0
    high: float = 0.0
    shade: int = 0


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of the histogram: rewards from `low` to `high`, the number of rollouts, and the cell of each step."""

    low: float
    high: float
    all: Cell
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Rollouts that one step of the trainer used, or that were accepted one after the other.

    `turns` and `tokens` (of replies) are means over the ended rollouts. Rates are fractions of the ended rollouts, of
    the rewards (`pass_rate`), of the tool calls (`tool_errors`), or of the rollouts with calls read (`truncated`).
    """

    begin: float
    """When the first of its rollouts was accepted, in Unix seconds."""
    end: float
    """The end of the step, in Unix seconds. None of its rollouts was accepted later."""
    rows: Sequence[RolloutInfo]
    name: str
    """The name of the trainer's step, or the number of the step."""
    ended: int
    rewards: tuple[float, ...]
    mean_reward: float | None
    pass_rate: float | None
    turns: float | None
    tokens: float | None
    tool_failures: float | None
    out_of_time: float | None
    read: int = 0
    """The number of its rollouts whose calls were read for `tool_errors` and `truncated`."""
    tool_errors: float | None = None
    truncated: float | None = None

    @property
    def rollouts(self) -> int:
        """The number of its rollouts."""
        return len(self.rows)

    def sample(self, most: int) -> Sequence[RolloutInfo]:
        """Return at most `most` of its ended rollouts, evenly spaced."""
        ended = [info for info in self.rows if info.end_time is not None]
        return ended[:: math.ceil(len(ended) / most)] if ended else ()

    def with_calls(self, calls: Mapping[Key, Calls]) -> "Step":
        """Return the step with the rates that are computed from the calls of its rollouts."""
        read = [calls[key] for info in self.rows if (key := (info.rollout_id, info.attempt)) in calls]
        tools = sum(len(each.tools) for each in read)
        return replace(
            self,
            read=len(read),
            tool_errors=sum(each.raised for each in read) / tools if tools else None,
            truncated=_mean([each.truncated for each in read]),
        )


def steps_of(rows: Sequence[RolloutInfo], steps: int, passing: float) -> list[Step]:
    """Divide rollouts into at most `steps` steps of equal sizes, in the order of acceptance.

    Steps begin and end at whole milliseconds, so that a link to one is short and selects exactly its rollouts.
    """
    ordered = sorted(rows, key=lambda info: info.accept_time)
    if not ordered:
        return []
    size = math.ceil(len(ordered) / steps)
    limits = {math.floor(1000 * info.accept_time) for info in ordered[::size]}
    edges = [each / 1000 for each in (*sorted(limits), math.floor(1000 * ordered[-1].accept_time) + 1)]
    found: list[Step] = []
    first = 0
    for begin, end in itertools.pairwise(edges):
        last = first
        while last < len(ordered) and ordered[last].accept_time < end:
            last += 1
        if last > first:
            found.append(_step(begin, end, ordered[first:last], passing, str(len(found) + 1)))
        first = last
    return found


def trainer_steps(rows: Sequence[RolloutInfo], names: Mapping[Key, str], passing: float) -> list[Step]:
    """Divide rollouts into the steps of the trainer that used them, in the order of the steps' numbers or times.

    Skip rollouts that no step used. Keep only the newest MOST_TRAINER_STEPS steps.
    """
    parts: dict[str, list[RolloutInfo]] = {}
    for info in sorted(rows, key=lambda info: info.accept_time):
        name = names.get((info.rollout_id, info.attempt), "")
        if name:
            parts.setdefault(name, []).append(info)
    ordered = sorted(parts, key=int) if all(name.isdecimal() for name in parts) else list(parts)
    return [
        _step(parts[name][0].accept_time, parts[name][-1].accept_time, parts[name], passing, name)
        for name in ordered[-MOST_TRAINER_STEPS:]
    ]


def _step(begin: float, end: float, rows: Sequence[RolloutInfo], passing: float, name: str) -> Step:
    ended = [info for info in rows if info.end_time is not None]
    rewards = tuple(info.reward for info in rows if info.reward is not None)
    return Step(
        begin=begin,
        end=end,
        rows=rows,
        name=name,
        ended=len(ended),
        rewards=rewards,
        mean_reward=_mean(rewards),
        pass_rate=_mean([reward >= passing for reward in rewards]),
        turns=_mean([info.chats for info in ended]),
        tokens=_mean([info.response_tokens for info in ended]),
        tool_failures=_mean([info.failure_reason == FailureReason.TOOL_EXCEPTION for info in ended]),
        out_of_time=_mean([info.state is RolloutState.DEADLINE_EXCEEDED for info in ended]),
    )


def histogram(steps: Sequence[Step]) -> list[Bin]:
    """Return the bins of the rewards of all steps, the highest first. A bin without rewards is left out."""
    rewards = [reward for step in steps for reward in step.rewards]
    values = sorted(set(rewards))
    if not values:
        return []
    if len(values) <= MOST_BINS:
        ranges = [[value] for value in values]
    else:
        width = (values[-1] - values[0]) / MOST_BINS
        ranges = [[] for _ in range(MOST_BINS)]
        for value in values:
            ranges[min(MOST_BINS - 1, int((value - values[0]) / width))].append(value)
    limits = [(each[0], each[-1]) for each in reversed(ranges) if each]
    whole, *columns = ([_cell(each, *limit) for limit in limits] for each in (rewards, *(it.rewards for it in steps)))
    parts = [_shaded(column) for column in columns]
    return [
        Bin(low, high, all_of_it, tuple(part[at] for part in parts))
        for at, ((low, high), all_of_it) in enumerate(zip(limits, _shaded(whole), strict=True))
    ]


def _cell(rewards: Sequence[float], low: float, high: float) -> Cell:
    inside = [reward for reward in rewards if low <= reward <= high]
    return Cell(len(inside), min(inside), max(inside)) if inside else Cell(0)


def _shaded(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a step with their shades: the largest one is the darkest."""
    most = max((cell.count for cell in cells), default=0) or 1
    return [replace(cell, shade=math.ceil(SHADES * cell.count / most)) for cell in cells]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters in the address of the page."""

    options: ListOptions
    passing: float
    steps: int | None
    by: str = ""

    @classmethod
    def of(cls, request: Request) -> "Asked":
        """Return the parameters of an address. Raises FilterError."""
        own = OWN | {name: text for name, text in request.query_params.items() if name in OWN and text}
        options = options_in(request, 0, OWN)
        passing = _number("pass", own["pass"])
        count = _number("steps", own["steps"])
        if not (count.is_integer() and 1 <= count <= MOST_STEPS):
            raise FilterError("steps", f"{own['steps']!r} is not a number of steps; name one from 1 to {MOST_STEPS}")
        if passing is math.inf or math.isnan(passing):
            raise FilterError("pass", f"{own['pass']!r} is not a reward; name one, for example 0.5")
        if own["by"] not in BY:
            raise FilterError("by", f"{own['by']!r} is not a way to divide rollouts; name trainer or acceptance")
        return cls(options, passing, int(count) if request.query_params.get("steps") else None, own["by"])

    def steps_of(self, rows: Sequence[RolloutInfo]) -> list[Step]:
        """Divide rollouts into steps."""
        count = self.steps or max(1, min(int(OWN["steps"]), len(rows) // FULL))
        return steps_of(rows, count, self.passing)


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    listed: Listed
    steps: list[Step]
    by_trainer: bool
    """Whether the rollouts are divided by the steps of the trainer."""
    called: bool = False


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    reads = pages.reads

    async def read(asked: Asked) -> Found:
        listed = await reads.newest(asked.options)
        names = {} if asked.by == "acceptance" else await reads.steps(listed.rows)
        if asked.by == "trainer" or names:
            return Found(listed, await reads.aside(lambda: trainer_steps(listed.rows, names, asked.passing)), True)
        return Found(listed, await reads.aside(lambda: asked.steps_of(listed.rows)), False)

    async def read_calls(asked: Asked) -> Found:
        """Return the values with the rates that are computed from calls."""
        found = await shared.get(asked)
        if not found.steps:
            return found
        most = max(1, READ[reads.is_folder] // len(found.steps))
        calls = await reads.calls([info for step in found.steps for info in step.sample(most)])
        steps = await reads.aside(lambda: [step.with_calls(calls) for step in found.steps])
        return replace(found, steps=steps, called=True)

    shared, with_calls = Shared(read), Shared(read_calls)

    def shown(asked: Asked, found: Found) -> dict[str, Any]:
        options, steps = asked.options, found.steps
        usual = replace(options, limit=ROWS)

        def link(step: Step | None, cell: Cell | None = None, path: str = "/", **more: str) -> str:
            """Return the address of the rollouts of a step, or of all steps, with the rewards of a cell."""
            if found.by_trainer:
                exact = {} if step is None else {"q": f"step:{step.name}"}
            else:
                first, last = (step, step) if step is not None else (steps[0], steps[-1])
                exact = {"since": f"@{first.begin:.3f}", "before": f"@{last.end:.3f}"}
            if cell is not None:
                exact |= {"min-reward": f"{cell.low!r}", "max-reward": f"{cell.high!r}"}
            exact |= more
            kept = [pair for pair in pairs_of(usual) if pair[0] not in (*exact, "limit")]
            return f"{path}?" + urlencode([*kept, *exact.items()])

        given = [("steps", f"{asked.steps}")] if asked.steps is not None else []
        given += [("by", asked.by)] if asked.by else []
        return {
            "found": found.listed,
            "steps": steps,
            "by_trainer": found.by_trainer,
            "used": sum(step.rollouts for step in steps),
            "names": [step.name for step in steps],
            "bins": histogram(steps),
            "curves": CURVES,
            "call_curves": CALL_CURVES,
            "called": found.called,
            "read": sum(step.read for step in steps),
            "rates": RATES,
            "drawn": {name: [getattr(step, name) for step in steps] for name, _, _ in (*CURVES, *CALL_CURVES)},
            "query": urlencode([*pairs_of(options), *given, ("pass", f"{asked.passing:g}")]),
            "links": [link(step) for step in steps],
            "link": link,
            "own": {"steps": asked.steps or len(steps) or OWN["steps"], "pass": f"{asked.passing:g}"},
            "filters": [pair for pair in pairs_of(options) if pair != ("limit", "0")],
        }

    @routes.get("/curves/calls")
    async def show_calls(request: Request) -> Response:
        asked = Asked.of(request)
        return pages.page("curves_calls.html", **shown(asked, await with_calls.get(asked)), at="curves")

    pages.follow(
        routes,
        "curves",
        asked=Asked.of,
        read=shared.get,
        later=with_calls.get,
        values=shown,
        key=lambda found: found.listed.rows,
        ended=lambda found: found.listed.stopped,
        calm=True,
    )
    return routes


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FilterError(name, f"{text!r} is not a number; name one, for example {OWN[name]}") from None
