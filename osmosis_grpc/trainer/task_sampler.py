"""TaskSampler draws the tasks of each batch, and remembers how the groups of each task were rewarded.

A group whose rewards are all equal teaches nothing: its task is too easy or too hard for the current policy. With
choice="varied", the sampler draws such tasks less often. Let q(v) be the share of the value v among the n rewards of a
group. Then another group like it has variance with the probability 1 - sum(q(v)**n): 0 if all rewards are equal, and
small if nearly all are. The expectation for a task is a weighted mean of this probability over its groups: each new
group multiplies the weights of the older ones by `memory`, and UNKNOWN imaginary groups with variance are added. The
weight of the task is the square of the expectation, but at least `floor`, so that the task is drawn again when the
policy has changed. A task without groups has the weight 1.

The draw depends only on the seed, the number of earlier draws, and the weights. So a sampler that is restored from a
state draws the same tasks as the original would have.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.trainer.groups import OutcomeGroup

Choice = Literal["uniform", "varied"]
"""How tasks are chosen: all with the same weight, or tasks whose groups have variance more often."""
UNKNOWN = 0.25
"""The number of imaginary groups with variance that each task starts with."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a sampler knows about a task."""

    groups: int = 0
    """The number of groups that were noted."""
    rewards: int = 0
    """The number of rewards in these groups."""
    mean_reward: float = 0.0
    """The mean of all rewards."""
    varied: float = 0.0
    """The sum, over the noted groups, of the probability that a group like it has variance. Older groups count less."""
    seen: float = 0.0
    """The number of noted groups. Older groups count less."""

    @property
    def varied_share(self) -> float:
        """The expected probability that the next group has variance."""
        return (self.varied + UNKNOWN) / (self.seen + UNKNOWN)


class TaskSampler:
    """Draws requests for Trainer.groups().

        sampler = TaskSampler(tasks, choice="varied", seed=1)
        for step in range(100):
            async for group in trainer.groups(sampler.draw(8, f"step-{step}"), group_size=8):
                sampler.note(group)

    Args:
        tasks: A request for each task. Its `metadata["task_id"]` is the id of the task, or else its rollout_id.
        choice: "uniform" draws all tasks alike. "varied" draws tasks whose groups have no variance less often.
        seed: The seed of the draws.
        floor: The smallest weight of a task, above 0 and at most 1.
        memory: The factor for the weights of a task's earlier groups when a new one is noted, from 0 to 1.

    Raises:
        ValueError: Two tasks have the same id, there are no tasks, or a number is out of its range.
    """

    def __init__(
        self,
        tasks: Sequence[RolloutRequest],
        *,
        choice: Choice = "uniform",
        seed: int = 0,
        floor: float = 0.05,
        memory: float = 0.5,
    ) -> None:
        if choice not in get_args(Choice):
            raise ValueError(f"choice: {choice!r} is not one of {', '.join(get_args(Choice))}")
        if not 0 < floor <= 1 or not 0 <= memory <= 1:
            raise ValueError(f"floor: {floor} is not above 0 and at most 1, or memory: {memory} is not from 0 to 1")
        self._tasks = {str(task.metadata.get("task_id") or task.rollout_id): task for task in tasks}
        if not tasks or len(self._tasks) < len(tasks):
            raise ValueError("tasks: there are none, or two have the same id")
        self._choice, self._seed, self._floor, self._memory = choice, seed, floor, memory
        self._draws = 0
        self._open: dict[str, str] = {}
        """The tasks of groups that were drawn but not noted yet, by the id of the group."""
        self._records: dict[str, TaskRecord] = {}

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """The record of each task with noted groups, by the id of the task."""
        return self._records

    def weight(self, task_id: str) -> float:
        """Return the weight of a task, relative to the weights of the other tasks."""
        if self._choice == "uniform":
            return 1.0
        return max(self._floor, self._records.get(task_id, TaskRecord()).varied_share ** 2)

    def draw(self, count: int, prefix: str) -> list[RolloutRequest]:
        """Draw different tasks, and return a request for each.

        Args:
            count: The number of tasks to draw, from 1 to the number of all tasks.
            prefix: The prefix of the rollout ids. Choose a new one for each call.

        Raises:
            ValueError: `count` is out of this range.
        """
        if not 0 < count <= len(self._tasks):
            raise ValueError(f"count: {count} is not from 1 to {len(self._tasks)}, the number of tasks")
        source = random.Random(f"{self._seed}/{self._draws}")
        self._draws += 1
        # Draw an exponential time with rate `weight` for each task: the smallest times are a weighted sample without
        # replacement.
        times = {task: source.expovariate(self.weight(task)) for task in self._tasks}
        drawn = sorted(times, key=times.__getitem__)[:count]
        requests = [replace(self._tasks[task], rollout_id=f"{prefix}-{n}") for n, task in enumerate(drawn)]
        self._open |= {request.rollout_id: task for request, task in zip(requests, drawn, strict=True)}
        return requests

    def note(self, group: OutcomeGroup) -> None:
        """Remember the rewards of a group that was drawn here. Ignore other groups, and groups noted before."""
        task = self._open.pop(group.id, None)
        rewards = [outcome.mean_reward for outcome in group.outcomes if outcome.mean_reward is not None]
        if task is None or not rewards:
            return
        known = self._records.get(task, TaskRecord())
        equal = sum((number / len(rewards)) ** len(rewards) for number in Counter(rewards).values())
        count = known.rewards + len(rewards)
        self._records[task] = TaskRecord(
            groups=known.groups + 1,
            rewards=count,
            mean_reward=known.mean_reward + (sum(rewards) - len(rewards) * known.mean_reward) / count,
            varied=known.varied * self._memory + 1.0 - equal,
            seen=known.seen * self._memory + 1.0,
        )

    def state(self) -> dict[str, Any]:
        """Return the state of the sampler as JSON, for restore()."""
        records = {task: asdict(record) for task, record in self._records.items()}
        return {"draws": self._draws, "open": dict(self._open), "records": records}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state() of another sampler. Records of tasks that this one does not have are kept."""
        self._draws = int(state["draws"])
        self._open = {group: task for group, task in state["open"].items() if task in self._tasks}
        self._records = {task: TaskRecord(**record) for task, record in state["records"].items()}
