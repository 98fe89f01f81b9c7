"""Grades the rollouts of a group together, after all of them have run on this server."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.grader import GraderContext
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import RolloutRequest, jsontext

GRADE_GROUP = job("agent.grade_group", OnFailure.RAISE)

MAX_WAIT = 1800.0
"""Without a grader_timeout, a rollout waits this many seconds for the others of its group."""
KEPT = 16
"""So many graded groups are kept, for a later attempt of one of their rollouts."""

GradeGroup = Callable[[Sequence[GraderContext]], Awaitable[Any]]
Key = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class _Group:
    """The rollouts of one group, by index."""

    size: int
    contexts: dict[int, GraderContext] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """Rollouts that ended before their grading."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the group is complete."""
    task: "asyncio.Task[None] | None" = None
    waiting: int = 0

    @property
    def complete(self) -> bool:
        return len(self.contexts.keys() | self.over) >= self.size


class Groups:
    """The groups of one workflow's rollouts."""

    def __init__(self) -> None:
        self._groups: dict[Key, _Group] = {}
        self._members: dict[tuple[str, int], tuple[Key, int]] = {}
        """The accepted rollouts of groups, by rollout id and attempt."""

    def accepted(self, request: RolloutRequest) -> None:
        """Note that a rollout of a group is going to run."""
        group = request.group
        if group is None or group.size < 2:
            return
        prompt = hashlib.sha256(jsontext.render(list(request.messages)).encode()).hexdigest()
        key = group.id, group.size, prompt
        found = self._groups.setdefault(key, _Group(group.size))
        found.over.discard(group.index)
        self._members[request.rollout_id, request.attempt] = key, group.index

    def has(self, request: RolloutRequest) -> bool:
        """Return whether a rollout belongs to a group of at least two rollouts."""
        return (request.rollout_id, request.attempt) in self._members

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Note that a rollout has ended. The others no longer wait for it."""
        key, index = self._members.pop((rollout_id, attempt), (None, 0))
        group = self._groups.get(key) if key is not None else None
        if key is None or group is None:
            return
        if group.task is None:  # it was not graded
            group.contexts.pop(index, None)
            group.over.add(index)
            if group.complete:
                group.changed.set()
        if not any(key == other for other, _ in self._members.values()):
            self._forget(key, group)

    async def grade(self, request: RolloutRequest, context: GraderContext, grade: GradeGroup) -> None:
        """Wait for the group of a rollout, and return when it is graded.

        The rollout that comes last grades the whole group. A later attempt of a graded rollout is graded with the
        contexts of the others. Raises the exception of `grade`, and TimeoutError after MAX_WAIT without a
        grader_timeout.
        """
        key, index = self._members[request.rollout_id, request.attempt]
        group = self._groups[key]
        if group.task is not None and group.task.done():
            group.task, group.changed = None, asyncio.Event()
        group.contexts[index] = context
        if group.complete:
            group.changed.set()
        group.waiting += 1
        try:
            await self._complete(request, group)
            if group.task is None:
                contexts = [group.contexts[number] for number in sorted(group.contexts)]
                group.task = child(GRADE_GROUP, _call(grade, contexts), name=f"grade group {key[0]}"[:80])
            await asyncio.shield(group.task)
        finally:
            group.waiting -= 1
            if not group.waiting and group.task is not None:
                group.task.cancel()

    async def _complete(self, request: RolloutRequest, group: _Group) -> None:
        limit = MAX_WAIT if request.grader_timeout is None else None
        try:
            async with asyncio.timeout(limit):
                await group.changed.wait()
        except TimeoutError:
            came, name = len(group.contexts), request.group.id if request.group else ""
            raise TimeoutError(
                f"{came} of {group.size} rollouts of the group {name!r} came within {MAX_WAIT:g} s; all rollouts of a "
                "group have to run on one server"
            ) from None

    def _forget(self, key: Key, group: _Group) -> None:
        """Keep a graded group for later attempts, and forget the oldest one. Forget a group that was never graded."""
        del self._groups[key]
        if group.task is not None:
            self._groups[key] = group
        used = {used for used, _ in self._members.values()}
        idle = [other for other in self._groups if other not in used]
        for other in idle[: max(0, len(idle) - KEPT)]:
            del self._groups[other]


async def _call(grade: GradeGroup, contexts: Sequence[GraderContext]) -> None:
    await grade(contexts)
