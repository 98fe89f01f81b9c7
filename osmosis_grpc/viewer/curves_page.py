"""The page of curves: a reward histogram of each step with links to its rollouts, and rates over the steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.protocol.types import FailureReason, RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of
from osmosis_grpc.viewer.curves import Cell, Step, histogram, steps_of
from osmosis_grpc.viewer.filters import options_in
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Listed, Shared
from osmosis_grpc.viewer.rollouts import ROWS

OWN = {"steps": "20", "pass": "1"}
"""The parameters of the address that are no filters of `list`, and their defaults."""
MOST_STEPS = 40
FULL = 4
"""Unless the address says how many steps there are, a step has at least this many rollouts."""
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
"""The same for the fields that need the calls of rollouts. The page loads them later."""
RATES = ("pass_rate", "truncated", "tool_errors", "tool_failures", "out_of_time")
"""The fields that are parts of one."""
READ = {True: 400, False: 40}
"""The calls of at most this many rollouts are read for the curves: of a folder, of a server."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address of the page asks for."""

    options: ListOptions
    passing: float
    steps: int | None

    @classmethod
    def of(cls, request: Request) -> "Asked":
        """Return what an address asks for. Raises FilterError."""
        own = OWN | {name: text for name, text in request.query_params.items() if name in OWN and text}
        options = options_in(request, 0, OWN)
        passing = _number("pass", own["pass"])
        count = _number("steps", own["steps"])
        if not (count.is_integer() and 1 <= count <= MOST_STEPS):
            raise FilterError("steps", f"{own['steps']!r} is not a number of steps; name one from 1 to {MOST_STEPS}")
        if passing is math.inf or math.isnan(passing):
            raise FilterError("pass", f"{own['pass']!r} is not a reward; name one, for example 0.5")
        return cls(options, passing, int(count) if "steps" in request.query_params else None)

    def steps_of(self, rows: Sequence[RolloutInfo]) -> list[Step]:
        """Divide rollouts into steps."""
        count = self.steps or max(1, min(int(OWN["steps"]), len(rows) // FULL))
        return steps_of(rows, count, self.passing)


@dataclass(frozen=True, slots=True)
class Found:
    """The values of the page."""

    listed: Listed
    steps: list[Step]
    called: bool = False


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    reads = pages.reads

    async def read(asked: Asked) -> Found:
        listed = await reads.newest(asked.options)
        return Found(listed, await reads.aside(lambda: asked.steps_of(listed.rows)))

    async def read_calls(asked: Asked) -> Found:
        """Return the same with the rates that need calls."""
        found = await shared.get(asked)
        if not found.steps:
            return found
        most = max(1, READ[reads.is_folder] // len(found.steps))
        calls = await reads.calls([info for step in found.steps for info in step.sample(most)])
        return Found(found.listed, await reads.aside(lambda: [step.with_calls(calls) for step in found.steps]), True)

    shared, with_calls = Shared(read), Shared(read_calls)

    def shown(asked: Asked, found: Found) -> dict[str, Any]:
        options, steps = asked.options, found.steps
        usual = replace(options, limit=ROWS)

        def link(step: Step | None, cell: Cell | None = None, path: str = "/", **more: str) -> str:
            """Return the address of the rollouts of a step, or of all steps, with the rewards of a cell."""
            first, last = (step, step) if step is not None else (steps[0], steps[-1])
            exact = {"since": f"@{first.begin:.3f}", "before": f"@{last.end:.3f}"}
            if cell is not None:
                exact |= {"min-reward": f"{cell.low!r}", "max-reward": f"{cell.high!r}"}
            exact |= more
            kept = [pair for pair in pairs_of(usual) if pair[0] not in (*exact, "limit")]
            return f"{path}?" + urlencode([*kept, *exact.items()])

        given = [("steps", f"{asked.steps}")] if asked.steps is not None else []
        return {
            "found": found.listed,
            "steps": steps,
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
