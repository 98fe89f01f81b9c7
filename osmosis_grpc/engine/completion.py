"""Builds the completion of a rollout: its terminal report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.session import ConversationStart, RolloutSession
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import Completion, CompletionStatus, RolloutMetrics, jsontext


def build_completion(record: Record, termination: Termination, result_id: str, now: float) -> Completion:
    """Return the completion. A completed rollout whose result cannot travel becomes a failure of the agent."""
    session: RolloutSession | None = record.run.session
    try:
        (messages, begins), extra = _report(termination, session)
    except InvalidArgument as error:
        termination = Termination.invalid_result(f"the result cannot be sent: {error}")
        (messages, begins), extra = _report(termination, session)
    samples = session.samples() if session else {}
    if begins is not None and begins.sample not in samples:  # only a grader was asked there: nothing of it is reported
        begins = None
    reward, outcome = None, termination.outcome
    if termination.status is CompletionStatus.COMPLETED and outcome is not None:
        reward = outcome.reward
        samples = {name: replace(s, reward=outcome.sample_rewards.get(name)) for name, s in samples.items()}
    if len(samples) == 1:
        samples = {
            name: replace(
                sample, reward=reward if sample.reward is None else sample.reward, messages=messages, begins=begins
            )
            for name, sample in samples.items()
        }
    return replace(
        bare_completion(record, termination, result_id),
        messages=messages,
        begins=begins,
        reward=reward,
        samples=samples,
        metrics=record.run.meter.total(now, session.tool_messages() if session else {}),
        extra_fields=extra,
    )


def bare_completion(record: Record, termination: Termination, result_id: str) -> Completion:
    """Return a completion without samples and metrics, for a rollout whose full completion cannot be built."""
    return Completion(
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        result_id=result_id,
        status=termination.status,
        finish_reason=termination.finish_reason,
        failure=termination.failure,
        metrics=RolloutMetrics(),
        group=record.init.request.group,
        evaluation=record.init.request.evaluation,
        agent_version=record.run.agent_version,
    )


def _report(termination: Termination, session: RolloutSession | None) -> tuple[ConversationStart, dict[str, Any]]:
    outcome = termination.outcome
    if session is None:
        return ([], None), {}
    if outcome is None:
        return session.newest(), {}
    extra: Any = {} if outcome.extra_fields is None else outcome.extra_fields
    if not isinstance(extra, Mapping):
        raise InvalidArgument("extra_fields", f"is a {type(extra).__name__}, not a dict")
    gave_up = outcome.failure is not None and not outcome.messages
    start = session.newest() if gave_up else session.frozen(outcome.messages, "final_messages")
    return start, jsontext.copy(dict(extra), "extra_fields")
