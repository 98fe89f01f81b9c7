"""From what an agent did to how its rollout ends."""

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.engine.record import Record, Verdict
from osmosis_grpc.engine.session import ConversationStart, RolloutSession
from osmosis_grpc.errors import Boundary, InvalidArgument
from osmosis_grpc.types import (
    Completion,
    CompletionStatus,
    Failure,
    FailureReason,
    RolloutMetrics,
    RolloutState,
    jsontext,
)
from osmosis_grpc.types.completion import clip, describe, is_reward


def failed(
    boundary: Boundary,
    message: str,
    *,
    reason: FailureReason = FailureReason.SERVER_ERROR,
    retryable: bool = False,
    finish_reason: str = "error",
) -> Verdict:
    """A rollout that failed without an exception."""
    return Verdict(CompletionStatus.FAILED, finish_reason, Failure(boundary, clip(message), retryable, reason=reason))


def invalid(message: str) -> Verdict:
    """A rollout whose agent returned what is no result."""
    return failed("agent", message, reason=FailureReason.AGENT_RESULT_INVALID)


def raised(error: BaseException) -> Verdict:
    """A rollout whose agent raised."""
    return Verdict(CompletionStatus.FAILED, "error", Failure.of(error))


def cancelled(reason: str, *, superseded: bool = False) -> Verdict:
    """A rollout that somebody cancelled, or that a higher attempt replaces."""
    return Verdict(CompletionStatus.CANCELLED, "superseded" if superseded else "cancelled", deliver=not superseded)


def lost(seconds: float) -> Verdict:
    """A rollout whose trainer stayed away."""
    why = f"the trainer was away for {seconds:g} s"
    return failed("trainer", why, retryable=True, reason=FailureReason.TRAINER_LOST, finish_reason="trainer_lost")


def expired(record: Record) -> Verdict:
    """A rollout whose agent_timeout ran out: whose fault depends on what it was doing.

    Beyond max_turns it is the agent's, whatever it was doing: it would have ended before.
    """
    request = record.init.request
    limit = request.agent_timeout or record.timeout or 0.0
    doing, turns = record.activity().description, request.max_turns
    asked = record.session.turns if record.session is not None else 0
    message = f"the agent_timeout of {limit:g} s ran out"
    boundary: Boundary = "agent"
    if 0 < turns < asked:
        message += f" at chat {asked}, and max_turns is {turns}: the agent does not stop at ctx.request.max_turns"
    elif record.state in (RolloutState.QUEUED, RolloutState.ACCEPTED):
        boundary = "server"
    elif doing.startswith("chat "):
        boundary = "trainer"
    own_code = "; it was in its own code, not in a chat or a tool"
    message += own_code if doing == "agent" else f"; it was doing: {doing}"
    if record.did:
        message += f", and before that: {' '.join(map(str, record.did))}"
    failure = Failure(boundary, message, True, reason=FailureReason.AGENT_TIMEOUT)
    return Verdict(CompletionStatus.DEADLINE_EXCEEDED, "timeout", failure)


def returned(result: Any) -> Verdict:
    """A rollout whose agent returned: a result that can be reported, or a failure of the agent."""
    if result is None:
        return invalid("run returned None; return ctx.complete(...) or ctx.error(...)")
    if not isinstance(result, RolloutResult):
        return invalid(f"run returned a {type(result).__name__}, not what ctx.complete or ctx.error returns")
    if result.status == "ERROR":
        message = _text(result.error_message) or "the agent gave up without a reason"
        verdict = failed("agent", message, reason=FailureReason.AGENT_ERROR)
        if isinstance(result.error_message, BaseException) and verdict.failure:
            verdict = replace(verdict, failure=verdict.failure.raised_at(result.error_message))
        return replace(verdict, finish_reason=_text(result.finish_reason) or "error", result=result)
    if result.status != "COMPLETED":
        return invalid(f"the result's status is {reprlib.repr(result.status)}, neither COMPLETED nor ERROR")
    if result.reward is not None and not is_reward(result.reward):
        return invalid(f"the reward is {reprlib.repr(result.reward)}, not a finite number")
    return Verdict(CompletionStatus.COMPLETED, _text(result.finish_reason) or "stop", result=result)


def completion(
    record: Record, verdict: Verdict, session: RolloutSession | None, result_id: str, now: float
) -> Completion:
    """The terminal report. What cannot travel turns a completed rollout into a failure of the agent."""
    try:
        (messages, begins), extra = _report(verdict, session)
    except InvalidArgument as error:
        verdict = invalid(f"the result cannot be sent: {error}")
        (messages, begins), extra = _report(verdict, session)
    samples = session.samples() if session else {}
    if begins is not None and begins.sample not in samples:  # only a judge was asked there: nothing of it is reported
        begins = None
    reward = None
    if verdict.status is CompletionStatus.COMPLETED and verdict.result is not None:
        reward = None if verdict.result.reward is None else float(verdict.result.reward)
    if len(samples) == 1:
        samples = {
            name: replace(sample, reward=reward, messages=messages, begins=begins) for name, sample in samples.items()
        }
    return Completion(
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        result_id=result_id,
        status=verdict.status,
        finish_reason=verdict.finish_reason,
        failure=verdict.failure,
        messages=messages,
        begins=begins,
        reward=reward,
        samples=samples,
        metrics=record.meter.total(now, session.tool_messages() if session else {}),
        extra_fields=extra,
        group=record.init.request.group,
        evaluation=record.init.request.evaluation,
        agent_version=record.agent_version,
    )


def bare(record: Record, verdict: Verdict, result_id: str) -> Completion:
    """A terminal report that says nothing of what the agent did: it is made when the whole one cannot be."""
    return Completion(
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        result_id=result_id,
        status=verdict.status,
        finish_reason=verdict.finish_reason,
        failure=verdict.failure,
        metrics=RolloutMetrics(),
        group=record.init.request.group,
        evaluation=record.init.request.evaluation,
        agent_version=record.agent_version,
    )


def _report(verdict: Verdict, session: RolloutSession | None) -> tuple[ConversationStart, dict[str, Any]]:
    result = verdict.result
    if session is None:
        return ([], None), {}
    if result is None:
        return session.newest(), {}
    extra: Any = {} if result.extra_fields is None else result.extra_fields
    if not isinstance(extra, Mapping):
        raise InvalidArgument("extra_fields", f"is a {type(extra).__name__}, not a dict")
    gave_up = result.status == "ERROR" and not result.final_messages
    message = session.newest() if gave_up else session.frozen(result.final_messages, "final_messages")
    return message, jsontext.copy(dict(extra), "extra_fields")


def _text(value: Any) -> str:
    """A text that can travel, of whatever an agent gave for one."""
    if value is None:
        return ""
    return clip(describe(value) if isinstance(value, BaseException) else str(value))
