"""The page of a task: every rollout with the same prompt and label, over all groups and steps, the oldest first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request

from osmosis_grpc.protocol.types import RolloutInfo, RolloutRequest
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.viewer.groups import MOST_LANES, Lane, RewardStatistics, read_lanes
from osmosis_grpc.viewer.images import parts_of
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Recent
from osmosis_grpc.viewer.tasks import task_of

SEARCHED = {True: 5_000, False: 200}
"""How many of the newest rollouts are searched for the task, for a folder (True) and for a server (False)."""
PASSES = 1.0
"""The least reward with which a rollout passes."""
KEPT = 4


class _Asked(NamedTuple):
    """The rollout whose task the page shows."""

    rollout_id: str
    attempt: int

    @classmethod
    def of(cls, request: Request) -> "_Asked":
        attempt = request.query_params.get("attempt", "")
        return cls(request.query_params.get("id", ""), int(attempt) if attempt.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class Attempts(RewardStatistics):
    """The rollouts of a task, the oldest first."""

    request: RolloutRequest
    rows: tuple[RolloutInfo, ...]
    lanes: tuple[Lane, ...]
    """The newest of these rollouts, with their turns and what the trainer did."""
    now: float
    stopped: bool
    searched: int
    cut: bool
    """Whether older rollouts were not searched."""

    @property
    def rewards(self) -> list[float]:
        return [info.reward for info in self.rows if info.reward is not None]

    @property
    def passed(self) -> int:
        """The number of rollouts that passed."""
        return sum(reward >= PASSES for reward in self.rewards)


def answer_of(lane: Lane) -> str:
    """Return the text of the last reply or, if it has no text, the tools that it called."""
    last = lane.turns[-1] if lane.turns else None
    return "" if last is None else last.text or ", ".join(name for name, _ in last.tools)


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads
    recent: Recent[Sequence[Lane]] = Recent(KEPT)

    async def read(asked: _Asked) -> Attempts:
        attempt = asked.attempt or (await reads.rollout(asked.rollout_id)).info.attempt
        request, _ = await reads.run(lambda source: source.request(asked.rollout_id, attempt))
        name = task_of(request).name
        most = SEARCHED[reads.is_folder]
        listed = await reads.newest(ListOptions(limit=most))
        tasks = await reads.tasks(listed.rows, most)
        found = [
            replace(info, group=task.group)
            for info in sorted(listed.rows, key=lambda info: info.accept_time)
            if (task := tasks.get((info.rollout_id, info.attempt))) is not None and task.name == name
        ]
        known = recent.get(name, lambda it: math.inf) or ()
        lanes = await reads.run(lambda source: read_lanes(source, found[-MOST_LANES:], known, by_time=True))
        recent.put(name, lanes)
        return Attempts(
            request, tuple(found), tuple(reversed(lanes)), listed.now, listed.stopped, listed.searched, listed.cut
        )

    def values(asked: _Asked, found: Attempts) -> dict[str, Any]:
        return {
            "found": found,
            "key": {"id": asked.rollout_id, "attempt": asked.attempt},
            "passes": PASSES,
            "answer_of": answer_of,
            "parts_of": parts_of,
        }

    pages.follow(
        routes,
        "task",
        asked=_Asked.of,
        read=read,
        values=values,
        key=lambda found: (found.rows, found.lanes, found.stopped),
        ended=lambda found: found.stopped,
        calm=True,
    )
    return routes
