"""Builds the outcome of a rollout, which is its final report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.run_samples import Graded, Samples
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus, RolloutMetrics, RolloutOutcome, Sample
from osmosis_grpc.protocol.types.json_values import to_json
from osmosis_grpc.protocol.types.samples import ROLLOUT_CUTS

_COMPLETED = OutcomeStatus.COMPLETED
_UNTOLD = frozenset({"", "stop", "final_answer"})
"""The default finish reasons of agents. They do not tell whether the last reply was cut."""


def build_outcome(record: Record, termination: Termination, result_id: str, now: float) -> RolloutOutcome:
    """Return the outcome. If the agent's result cannot be sent, the outcome is FAILED (agent)."""
    states = record.run.session.samples if record.run.session else Samples()
    try:
        extra = _conclude(termination, states)
    except InvalidArgument as error:
        why, reason = f"the result cannot be sent: {error}", FailureReason.AGENT_RESULT_INVALID
        termination, extra = Termination.failed("agent", why, reason=reason), {}
    if ended := states.end_reason():
        termination = _ended_by(termination, ended)
    samples = _cut(states.assembled(refer=record.peer.accepts_references), termination, states.main)
    graded, result = Graded(samples), termination.result
    if termination.status is _COMPLETED and result is not None:
        if result.reward is not None:
            states.rewards.set(result.reward, "")
        for name, reward in result.sample_rewards.items():
            states.rewards.set(reward, name)
        graded = states.rewards.grade(samples)
    return replace(
        bare_outcome(record, termination, result_id),
        reward=graded.reward,
        reward_components=graded.components,
        samples=graded.samples,
        metrics=record.run.meter.total(now, states.tool_messages(record.init.request.messages)),
        extra_fields=extra,
    )


def _ended_by(termination: Termination, reason: str) -> Termination:
    """Return the termination of a rollout whose main conversation was cut. `reason` becomes the finish reason.

    The old finish reason is kept if the agent chose it, or if the rollout failed for another cause than the agent.
    """
    chosen = termination.result.finish_reason if termination.result is not None else ""
    of_agent = termination.failure is None or termination.failure.reason is FailureReason.AGENT_EXCEPTION
    if chosen not in _UNTOLD or not of_agent or termination.status not in (_COMPLETED, OutcomeStatus.FAILED):
        return termination
    return replace(termination, finish_reason=reason)


def _cut(samples: dict[str, Sample], termination: Termination, main: str) -> dict[str, Sample]:
    """Return the samples, marked with the limit that cut the rollout.

    A timeout of the rollout cuts all samples. Any other limit cuts only the main conversation. If a limit cut the last
    reply of a sample, the sample keeps that limit.
    """
    failure = termination.failure
    cut = ROLLOUT_CUTS.get(termination.finish_reason, "")
    if not cut or (failure is not None and failure.reason is FailureReason.GRADER_TIMEOUT):
        return samples
    everywhere = termination.status is OutcomeStatus.DEADLINE_EXCEEDED
    return {
        name: replace(sample, cut=sample.cut or cut) if everywhere or name == main else sample
        for name, sample in samples.items()
    }


def bare_outcome(record: Record, termination: Termination, result_id: str) -> RolloutOutcome:
    """Return an outcome without samples and metrics, for a rollout whose full outcome cannot be built."""
    return RolloutOutcome(
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


def _conclude(termination: Termination, samples: Samples) -> dict[str, Any]:
    """Put the agent's final messages into their sample. Return the extra fields. Raises InvalidArgument."""
    result = termination.result
    if result is None:
        return {}
    extra: Any = {} if result.extra_fields is None else result.extra_fields
    if not isinstance(extra, Mapping):
        raise InvalidArgument("extra_fields", f"is a {type(extra).__name__}, not a dict")
    if result.messages or (result.failure is None and result.messages is not None):
        samples.conclude(result.messages, "final_messages")
    made: dict[str, Any] = to_json(extra, "extra_fields", repair=True)
    return made
