"""Summarizes rollouts in steps: a reward histogram and rates for each step, from the rows of rollouts alone."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from osmosis_grpc.protocol.types import FailureReason, RolloutInfo, RolloutState
from osmosis_grpc.viewer.calls import Calls, Key

MOST_BINS = 12
"""Rewards with at most this many values have a bin for each value; others have this many bins."""
SHADES = 5
"""The style sheet has this many shades of bins."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The rollouts of a step with rewards from `low` to `high`, both included. They are rewards that occur."""

    count: int
    low: float = 0.0
    high: float = 0.0
    shade: int = 0


@dataclass(frozen=True, slots=True)
class Bin:
    """Rewards from `low` to `high`, the rollouts that have them, and the cell of each step."""

    low: float
    high: float
    all: Cell
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Rollouts that were accepted one after the other.

    Turns and tokens of replies are means of the ended rollouts. Rates are parts of these, of the rewards (`pass_rate`),
    of the tool calls (`tool_errors`) or of the rollouts that were read (`truncated`).
    """

    begin: float
    """Unix seconds. The step has the rollouts that were accepted from then on."""
    end: float
    """Unix seconds. The step has the rollouts that were accepted before then."""
    rows: Sequence[RolloutInfo]
    ended: int
    rewards: tuple[float, ...]
    mean_reward: float | None
    pass_rate: float | None
    turns: float | None
    tokens: float | None
    tool_failures: float | None
    out_of_time: float | None
    read: int = 0
    """The number of its rollouts whose calls were read for the next two."""
    tool_errors: float | None = None
    truncated: float | None = None

    @property
    def rollouts(self) -> int:
        """The number of its rollouts."""
        return len(self.rows)

    def sample(self, most: int) -> Sequence[RolloutInfo]:
        """Return at most so many of its ended rollouts, evenly chosen."""
        ended = [info for info in self.rows if info.end_time is not None]
        return ended[:: math.ceil(len(ended) / most)] if ended else ()

    def with_calls(self, calls: Mapping[Key, Calls]) -> "Step":
        """Return the step with the rates that need the calls of its rollouts."""
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

    The limits of steps are whole milliseconds, so a link has short ones and selects the same rollouts.
    """
    ordered = sorted(rows, key=lambda info: info.accept_time)
    if not ordered:
        return []
    size = math.ceil(len(ordered) / steps)
    limits = {math.floor(1000 * info.accept_time) for info in ordered[::size]}
    edges = [each / 1000 for each in (*sorted(limits), math.floor(1000 * ordered[-1].accept_time) + 1)]
    found, first = [], 0
    for begin, end in itertools.pairwise(edges):
        last = first
        while last < len(ordered) and ordered[last].accept_time < end:
            last += 1
        if last > first:
            found.append(_step(begin, end, ordered[first:last], passing))
        first = last
    return found


def _step(begin: float, end: float, rows: Sequence[RolloutInfo], passing: float) -> Step:
    ended = [info for info in rows if info.end_time is not None]
    rewards = tuple(info.reward for info in rows if info.reward is not None)
    return Step(
        begin=begin,
        end=end,
        rows=rows,
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
