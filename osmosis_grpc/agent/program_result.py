"""Reads the result of a program or function that does not use the context: its reward, its rewards and its metadata."""

from collections.abc import Mapping
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.result_check import RunOutcome
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import Failure, FailureReason, jsontext
from osmosis_grpc.types.outcome import clip, is_reward

KEYS = ("reward", "rewards", "metadata", "finish_reason")
"""The keys of a result. Every key may be missing or null."""


def program_outcome(result: Mapping[str, Any], context: RolloutContext) -> RunOutcome:
    """Return the outcome for a result, and set the rewards of its samples.

    The final conversations are those of the samples. For a result that cannot be used, the outcome is a failure that
    names the field.
    """
    try:
        return _read(result, context)
    except InvalidArgument as error:
        return invalid_result(str(error))


def invalid_result(problem: str) -> RunOutcome:
    """Return the failure for a result that cannot be used."""
    message = clip(f"the result cannot be used: {problem}")
    return RunOutcome(failure=Failure("agent", message, False, reason=FailureReason.AGENT_RESULT_INVALID))


def _read(result: Mapping[str, Any], context: RolloutContext) -> RunOutcome:
    for key in result:
        if key not in KEYS:
            raise InvalidArgument(
                jsontext.check_text(str(key), "result"), f"is unknown; the keys are {', '.join(KEYS)}"
            )
    reward, finish_reason = result.get("reward"), result.get("finish_reason")
    if reward is not None:
        _check_reward(reward, "reward")
    if not isinstance(finish_reason, str | None):
        raise InvalidArgument("finish_reason", f"is a {type(finish_reason).__name__}, not a text")
    metadata = jsontext.copy(_object(result, "metadata"), "metadata")
    for sample, value in _object(result, "rewards").items():
        _check_reward(value, f"rewards[{sample!r}]")
        try:
            context.set_reward(value, sample=sample)
        except ValueError as error:
            raise InvalidArgument(f"rewards[{sample!r}]", str(error).removeprefix("sample: ")) from None
    return RunOutcome(
        finish_reason=clip(finish_reason or "", 256),
        reward=None if reward is None else float(reward),
        extra_fields=metadata or None,
    )


def _object(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = result.get(key)
    if not isinstance(value, Mapping | None):
        raise InvalidArgument(key, f"is a {type(value).__name__}, not an object")
    return value or {}


def _check_reward(value: Any, field: str) -> None:
    if not is_reward(value):
        raise InvalidArgument(field, f"{value!r:.40} is not a finite number")
