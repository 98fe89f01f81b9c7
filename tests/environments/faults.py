"""What an environment may do wrong, and what becomes of it."""

import threading

from osmosis_grpc.environments import open_environment
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.rollouts import run_rollout

REWARDS = {"nan": float("nan"), "list": [1.0], "none": None, "text": "much"}
HOW = ["raises", "hangs", *REWARDS]


def go_wrong(how):
    """Return the wrong reward, or raise, or hang."""
    if how == "raises":
        raise KeyError("lost")
    if how == "hangs":
        threading.Event().wait(5)  # longer than the time limit
    return REWARDS[how]


async def assert_it_fails(spec, said="1", **fields):
    """The first task ends with a failure that names it, and has no reward."""
    environment = open_environment(spec)
    task_id = environment.task_id(next(iter(environment.keys())))
    messages = environment.task(task_id.rpartition("#")[2]).messages
    metadata = {"task_id": task_id}
    outcome = await run_rollout(
        environment, lambda chat: answer(chat, said), messages, **{"metadata": metadata, **fields}
    )
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.startswith(task_id)
    assert outcome.reward is None
