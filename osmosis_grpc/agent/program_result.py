"""The result of a program that is no agent loop: the value that a function returns, or the content of a result file."""

import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.result_check import RunOutcome, invalid_result
from osmosis_grpc.protocol.types.json_values import number_of

KEYS = ("reward", "rewards", "train", "metadata", "finish_reason")
"""The keys of a result. Each can be left out."""


def outcome_of_program(result: Any, context: RolloutContext) -> RunOutcome:
    """Return the outcome for a program's result. A result that cannot be used gives a failure that names the field.

    The result is None, a reward, or a dict. Its key `reward` is the reward of the rollout, `rewards` maps samples to
    rewards, `train` maps samples to whether to train on them, `metadata` is more data for the trainer, and
    `finish_reason` is a string. The trainer gets the newest conversation that was sampled.
    """
    if not isinstance(result, Mapping):
        result = {"reward": result}
    unknown = sorted(str(key) for key in result if key not in KEYS)
    if unknown:
        return invalid_result(f"{unknown[0]}: is not a key of a result; the keys are {', '.join(KEYS)}")
    reward, rewards, train, metadata, finish_reason = (result.get(key) for key in KEYS)
    number = None if reward is None else number_of(reward)
    if reward is not None and number is None:
        return invalid_result(f"reward: is {reprlib.repr(reward)}, not a finite number")
    for name, value in (("rewards", rewards), ("train", train), ("metadata", metadata)):
        if value is not None and not isinstance(value, Mapping):
            return invalid_result(f"{name}: is a {type(value).__name__}, not an object")
    if finish_reason is not None and not isinstance(finish_reason, str):
        return invalid_result(f"finish_reason: is a {type(finish_reason).__name__}, not a string")
    for sample, value in (rewards or {}).items():
        if number_of(value) is None:
            return invalid_result(f"rewards.{sample}: is {reprlib.repr(value)}, not a finite number")
        problem = _problem(context.set_reward, value, sample)
        if problem:
            return invalid_result(f"rewards.{sample}: {problem}")
    for sample, value in (train or {}).items():
        problem = _problem(context.set_train, value, sample)
        if problem:
            return invalid_result(f"train.{sample}: {problem}")
    return RunOutcome(finish_reason=finish_reason or "", messages=None, reward=number, extra_fields=metadata)


def _problem(change: Callable[..., None], value: Any, sample: str) -> str:
    try:
        change(value, sample=sample)
    except ValueError as error:
        return re.sub("^(sample|wish): ", "", str(error))
    return ""
