"""Converts the tasks of an environment to the rows of a dataset, and to the requests of a trainer."""

from collections.abc import Iterator
from typing import Any

from osmosis_grpc.environments.environment import Environment
from osmosis_grpc.environments.port import TASK_ID
from osmosis_grpc.protocol.types import RolloutRequest


def task_rows(environment: Environment) -> Iterator[dict[str, Any]]:
    """Yield a row for each task: its messages, its label as `ground_truth`, and its id as `task_id`."""
    for key in environment.keys():  # noqa: SIM118 # it is no dict
        task = environment.task(key)
        row: dict[str, Any] = {"messages": [dict(message) for message in task.messages]}
        if task.label is not None:
            row["ground_truth"] = task.label
        yield {**row, TASK_ID: environment.task_id(key)}


def task_requests(environment: Environment, prefix: str, **fields: Any) -> Iterator[RolloutRequest]:
    """Yield a request for each task, for Trainer.groups() and Trainer.run().

    Args:
        environment: The environment. Its library must be installed here too.
        prefix: The prefix of the rollout ids. Choose a new one each time, because each id can run only once.
        **fields: More fields of each RolloutRequest, such as `max_turns`.
    """
    for number, row in enumerate(task_rows(environment)):
        yield RolloutRequest(
            rollout_id=f"{prefix}-{number}",
            messages=row["messages"],
            label=row.get("ground_truth"),
            metadata={TASK_ID: row[TASK_ID], **fields.get("metadata", {})},
            **{"agent_loop": environment.name, **{key: value for key, value in fields.items() if key != "metadata"}},
        )
