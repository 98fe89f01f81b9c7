"""TaskSampler draws the tasks of each batch, and remembers how the groups of each task were rewarded.

A group whose rewards are all equal teaches nothing: its task is too easy or too hard for the policy of today. The
choice "varied" draws such tasks less often. If a group of n rewards has the value v with the share q(v), another
group like it has variance with the probability 1 - sum(q(v)**n): 0 for equal rewards, and less than 1 if nearly all
are equal. The expectation for a task is the mean over its groups, where a new group multiplies the older ones by
`memory`, and over UNKNOWN groups with variance that nobody has seen. The weight of the task is the square of the
expectation, and at least `floor`, so that a task comes back when the policy has changed. A task without groups has
the weight 1.

What is drawn depends only on the seed, the number of draws, and the weights. So a sampler that is restored from its
state draws what the other one would have drawn.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.trainer.groups import OutcomeGroup

Choice = Literal["uniform", "varied"]
"""How tasks are chosen: all alike, or those whose groups have variance more often."""
UNKNOWN = 0.25
"""How many groups with variance each task has besides those that were noted."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a sampler knows of a task."""

    groups: int = 0
    """How many groups were noted."""
    rewards: int = 0
    """How many rewards they had."""
    mean_reward: float = 0.0
    """The mean of all rewards."""
    varied: float = 0.0
    """The sum of the probabilities of variance in groups like those that were noted; older ones count less."""
    seen: float = 0.0
    """The number of these groups; older ones count less."""

    @property
    def varied_share(self) -> float:
        """The probability with which the next group is expected to have variance."""
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
        seed: Decides what is drawn.
        floor: The least weight of a task, above 0 and at most 1.
        memory: What is left of the earlier groups of a task when a new one is noted, from 0 to 1.

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
        """The tasks of the groups that were drawn and not noted, by the id of the group."""
        self._records: dict[str, TaskRecord] = {}

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """What is known of each task that has groups, by its id."""
        return self._records

    def weight(self, task_id: str) -> float:
        """Return how likely a task is drawn, beside those of the other tasks."""
        if self._choice == "uniform":
            return 1.0
        return max(self._floor, self._records.get(task_id, TaskRecord()).varied_share ** 2)

    def draw(self, count: int, prefix: str) -> list[RolloutRequest]:
        """Draw different tasks, and return a request for each.

        Args:
            count: How many; at most as many as there are tasks.
            prefix: The beginning of the rollouts' ids. Choose another one for each call.

        Raises:
            ValueError: There are fewer tasks.
        """
        if not 0 < count <= len(self._tasks):
            raise ValueError(f"count: {count} is not from 1 to {len(self._tasks)}, the number of tasks")
        source = random.Random(f"{self._seed}/{self._draws}")
        self._draws += 1
        # Of exponential times with these rates, the smallest ones are a weighted draw without repetition.
        times = {task: source.expovariate(self.weight(task)) for task in self._tasks}
        drawn = sorted(times, key=times.__getitem__)[:count]
        requests = [replace(self._tasks[task], rollout_id=f"{prefix}-{n}") for n, task in enumerate(drawn)]
        self._open |= {request.rollout_id: task for request, task in zip(requests, drawn, strict=True)}
        return requests

    def note(self, group: OutcomeGroup) -> None:
        """Remember the rewards of a group that was drawn here. A group counts once; others are ignored."""
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
        """Return what the sampler knows, as JSON."""
        records = {task: asdict(record) for task, record in self._records.items()}
        return {"draws": self._draws, "open": dict(self._open), "records": records}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another sampler. What it knows of tasks that are not here is kept."""
        self._draws = int(state["draws"])
        self._open = {group: task for group, task in state["open"].items() if task in self._tasks}
        self._records = {task: TaskRecord(**record) for task, record in state["records"].items()}
