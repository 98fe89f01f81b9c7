"""Grades the rollouts of a group together, after all of them have run on this server."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.grader import GraderContext
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.protocol.types import RolloutRequest, jsontext
from osmosis_grpc.supervise import OnFailure, child, job

GRADE_GROUP = job("agent.grade_group", OnFailure.RAISE)

KEPT = 16
"""The number of graded groups that are kept for later attempts of their rollouts."""

GradeGroup = Callable[[Sequence[GraderContext]], Awaitable[Any]]
Waiting = Callable[[str], AbstractContextManager[None]]
"""Called with a description of what a rollout waits for. The rollout has no slot until the context manager ends."""
Key = tuple[str, str, int, str]
"""The owner, the id and the size of a group, and a digest of its prompt."""


@dataclass(slots=True, eq=False)
class _Group:
    size: int
    contexts: dict[int, GraderContext] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """Rollouts that ended before their grading."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the group is complete."""
    task: "asyncio.Task[None] | None" = None
    grader: GraderContext | None = None
    """The context of the rollout that grades the group."""
    waiting: int = 0
    members: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The rollout id and the newest attempt, by index."""
    running: int = 0
    """The number of accepted attempts that have not ended."""

    @property
    def complete(self) -> bool:
        return len(self.contexts.keys() | self.over) >= self.size


class Groups:
    """The groups of one workflow's rollouts."""

    def __init__(self) -> None:
        self._groups: dict[Key, list[_Group]] = {}
        """The groups with the same key: another run of the trainer can use an id again."""
        self._members: dict[tuple[str, int], tuple[Key, _Group, int]] = {}
        """The key, the group and the index of accepted rollouts, by rollout id and attempt."""
        self._kept: dict[_Group, Key] = {}
        """The graded groups whose rollouts have ended, the newest last."""

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Add a rollout of a group before it runs. Idempotent. Only rollouts of one owner share a group."""
        group, member = request.group, (request.rollout_id, request.attempt)
        if group is None or group.size < 2 or member in self._members:
            return
        prompt = hashlib.sha256(jsontext.render(list(request.messages)).encode()).hexdigest()
        key = owner, group.id, group.size, prompt
        found = self._find(key, group.index, request.rollout_id)
        found.over.discard(group.index)
        if found.task is None:  # an earlier attempt that still waits is not graded
            found.contexts.pop(group.index, None)
        found.members[group.index] = member
        found.running += 1
        self._kept.pop(found, None)
        self._members[member] = key, found, group.index

    def _find(self, key: Key, index: int, rollout_id: str) -> _Group:
        """Return the group of a rollout: that of its earlier attempt, one that waits for its index, or a new one."""
        groups = self._groups.setdefault(key, [])
        for group in groups:
            if index in group.members and group.members[index][0] == rollout_id:
                return group
        for group in groups:
            if index not in group.members and group.task is None:
                return group
        groups.append(_Group(key[2]))
        return groups[-1]

    def has(self, request: RolloutRequest) -> bool:
        """Return whether a rollout belongs to a group of at least two rollouts."""
        return (request.rollout_id, request.attempt) in self._members

    def ended_before(self, request: RolloutRequest, indexes: Iterable[int]) -> None:
        """Record the rollouts that ended before a restart of the server, so that the others do not wait for them."""
        _, group, _ = self._members[request.rollout_id, request.attempt]
        group.over.update(set(indexes) - group.members.keys())
        if group.complete:
            group.changed.set()

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Record that a rollout has ended, so that the others no longer wait for it."""
        member = rollout_id, attempt
        if member not in self._members:
            return
        key, group, index = self._members.pop(member)
        group.running -= 1
        if group.task is None and group.members[index] == member:  # it was not graded, and has no later attempt
            group.contexts.pop(index, None)
            group.over.add(index)
            if group.complete:
                group.changed.set()
        if not group.running:
            self._forget(key, group)

    async def grade(self, request: RolloutRequest, context: GraderContext, grade: GradeGroup, waiting: Waiting) -> None:
        """Wait for the group of a rollout, and return when it is graded.

        The rollout that comes last grades the whole group. A later attempt of a rollout is graded with the contexts of
        the others, after the grading that runs. Raises the exception of `grade`.
        """
        (_, name, size, _), group, index = self._members[request.rollout_id, request.attempt]
        while (task := group.task) is not None:
            with waiting(f"waiting for the earlier grading of the group {name!r}"):
                await asyncio.wait({task})
            if group.task is task:
                group.task, group.changed = None, asyncio.Event()
        group.contexts[index] = context
        if group.complete:
            group.changed.set()
        group.waiting += 1
        try:
            with waiting(f"waiting for the {size} rollouts of the group {name!r}, which have to run on this server"):
                await group.changed.wait()
            while not await self._graded(name, group, context, grade):
                pass
        finally:
            group.waiting -= 1
            if not group.waiting and group.task is not None:
                group.task.cancel()

    async def _graded(self, name: str, group: _Group, own: GraderContext, grade: GradeGroup) -> bool:
        """Return True when the group is graded, and False if the rollout that grades it has ended."""
        if group.task is None:
            contexts = [group.contexts[number] for number in sorted(group.contexts)]
            group.grader = own
            group.task = child(GRADE_GROUP, _call(grade, contexts), name=f"grade group {name}"[:80])
        task, grader = group.task, group.grader
        try:
            await asyncio.shield(task)
        except RolloutEndedError:
            if grader is own:
                raise
            if group.task is task:
                group.task = None
                for index in [index for index, context in group.contexts.items() if context is grader]:
                    del group.contexts[index]
                    group.over.add(index)
            return False
        return True

    def _forget(self, key: Key, group: _Group) -> None:
        """Keep a graded group for later attempts, and forget the oldest one. Forget a group that was never graded."""
        self._kept.pop(group, None)
        if group.task is not None:
            self._kept[group] = key
        over = {group: key} if group.task is None else dict(list(self._kept.items())[:-KEPT])
        for other, name in over.items():
            self._kept.pop(other, None)
            self._groups[name].remove(other)
            if not self._groups[name]:
                del self._groups[name]


async def _call(grade: GradeGroup, contexts: Sequence[GraderContext]) -> None:
    await grade(contexts)
