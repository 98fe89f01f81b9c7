"""RunOutcome is the result of one run, made from the value that an agent loop returns or from a program's result."""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.protocol.types import Failure, FailureReason, Message
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.outcome import clip, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of one run, or its failure."""

    finish_reason: str = ""
    """Empty means `stop` for a run that succeeded, and `error` for a failure."""
    failure: Failure | None = None
    """None if the run succeeded."""
    messages: Sequence[Message] | None = ()
    """The final conversation. None means the newest conversation that was sampled; for a failure, () means it, too."""
    reward: float | None = None
    """The reward of the whole rollout, and of its sample if there is only one. None means that there is no reward."""
    sample_rewards: Mapping[str, float] = field(default_factory=dict)
    """Sample name to reward, for a rollout with several samples."""
    extra_fields: Mapping[str, Any] | None = None
    """More data for the trainer."""


def outcome_of(result: Any) -> RunOutcome:
    """Return the outcome for what an agent loop returned: a failure unless this is a valid RolloutResult."""
    if isinstance(result, RunOutcome):
        return result
    if result is None:
        return invalid_result("run returned None; return ctx.complete(...) or ctx.error(...)")
    if not isinstance(result, RolloutResult):
        return invalid_result(f"run returned a {type(result).__name__}, not what ctx.complete or ctx.error returns")
    failure = None
    if result.status == "ERROR":
        message = _text(result.error_message) or "the agent gave up without a reason"
        failure = Failure("agent", clip(message), False, reason=FailureReason.AGENT_ERROR)
        if isinstance(result.error_message, BaseException):
            failure = failure.raised_at(result.error_message)
    elif result.status != "COMPLETED":
        return invalid_result(f"the result's status is {reprlib.repr(result.status)}, neither COMPLETED nor ERROR")
    reward = None if result.reward is None else number_of(result.reward)
    if failure is None and reward is None and result.reward is not None:
        return invalid_result(f"the reward is {reprlib.repr(result.reward)}, not a finite number")
    return RunOutcome(
        finish_reason=_text(result.finish_reason),
        failure=failure,
        messages=result.final_messages,
        reward=None if failure else reward,
        extra_fields=result.extra_fields,
    )


def invalid_result(message: str) -> RunOutcome:
    """Return the outcome for a result that cannot be used."""
    return RunOutcome(failure=Failure("agent", clip(message), False, reason=FailureReason.AGENT_RESULT_INVALID))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return clip(describe(value) if isinstance(value, BaseException) else str(value))


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
