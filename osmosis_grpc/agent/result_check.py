"""RunOutcome is the result of one run. outcome_of() checks what an agent loop returned."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Return the outcome for an agent loop's return value. A value that is no valid RolloutResult gives a failure."""
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
