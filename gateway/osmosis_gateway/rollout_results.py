"""The results of POST /rollout: the bodies of the two callbacks, and the answer to a poll."""

from dataclasses import dataclass
from typing import Any

from osmosis_gateway.contracts import Terms
from osmosis_grpc.agent.error_categories import RolloutErrorCategory, error_category
from osmosis_grpc.agent.workflow_runnable import NATIVE_KEY
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus, RolloutOutcome

_GRADER = frozenset((FailureReason.GRADER_EXCEPTION, FailureReason.GRADER_RESULT_INVALID, FailureReason.GRADER_TIMEOUT))
"""Failures of the grader. The agent itself has succeeded."""
TELEMETRY, GRADING = "samples", "grading"
"""Keys that WorkflowRunnable sets in extra_fields, besides NATIVE_KEY."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rollout, or a part of it, ended."""

    status: str = "success"
    message: str | None = None
    category: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the verdict as fields of a body."""
        return {"status": self.status, "err_message": self.message, "err_category": self.category}


def agent_verdict(outcome: RolloutOutcome) -> Verdict:
    """Return how the agent ended. A failure always has a message."""
    failure = outcome.failure
    if outcome.status is OutcomeStatus.COMPLETED or (failure is not None and failure.reason in _GRADER):
        return Verdict()
    return _failed(outcome)


def grader_verdict(outcome: RolloutOutcome, terms: Terms) -> Verdict:
    """Return how the grading ended. If a sample has no reward, that is a failure whose message says why."""
    if outcome.status is not OutcomeStatus.COMPLETED:
        return _failed(outcome)
    why = str(outcome.extra_fields.get(GRADING, ""))
    kept = [name for name, sample in outcome.samples.items() if sample.train is not False]
    missing = [name for name in kept if outcome.reward_of(name) is None]
    if not outcome.samples:
        why = "the rollout has no samples"
    elif not terms.contract.names_samples and len(kept) != 1 and len(outcome.samples) > 1:
        names = ", ".join(outcome.samples)
        why = f"the contract {terms.contract.name} has one sample for each rollout, and this one has: {names}"
    elif missing and not why:
        why = f"there is no reward for the sample {', '.join(map(repr, missing))}"
    return Verdict("failure", why, RolloutErrorCategory.VALIDATION_ERROR) if why else Verdict()


def completion_body(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the body of the completion callback."""
    extra = {name: value for name, value in outcome.extra_fields.items() if name not in (NATIVE_KEY, TELEMETRY)}
    return {"rollout_id": outcome.rollout_id, "extra_fields": extra or None} | agent_verdict(outcome).row()


def grader_body(outcome: RolloutOutcome, terms: Terms) -> dict[str, Any]:
    """Return the body of the grader callback. After a failure, it has the samples without their rewards.

    Trainers of 0.2.18 read `samples`, and those of 0.3.0 read `sample`. The body has both, because a request of 0.3.0
    can look like one of 0.2.18, and without its key, a trainer assumes that the rollout has no reward.
    """
    verdict = grader_verdict(outcome, terms)
    rows = sample_rows(outcome, terms, rewarded=verdict.status == "success")
    only = _only(outcome, rows)
    samples = {name: {"id": name, **row} for name, row in rows.items()}
    if not terms.contract.names_samples:
        samples = {name: row for name, row in samples.items() if rows[name] is only}
    return {"rollout_id": outcome.rollout_id, "samples": samples, "sample": only} | verdict.row()


def _only(outcome: RolloutOutcome, rows: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the only sample that may be trained on, or of the only sample; None if there are several."""
    kept = [name for name, sample in outcome.samples.items() if sample.train is not False] or list(rows)
    return rows[kept[0]] if len(kept) == 1 else None


def sample_rows(outcome: RolloutOutcome, terms: Terms, *, rewarded: bool) -> dict[str, dict[str, Any]]:
    """Return the samples as rows. Messages are in the agent library's own format if the outcome has them."""
    native, telemetry = outcome.extra_fields.get(NATIVE_KEY) or {}, outcome.extra_fields.get(TELEMETRY) or {}
    rows = {}
    for name, sample in outcome.samples.items():
        removed = sample.train is False
        about = telemetry.get(name) or {}
        rows[name] = {
            "messages": native.get(name) or list(sample.messages),
            "label": terms.label,
            "reward": outcome.reward_of(name) if rewarded and not removed else None,
            "remove_sample": removed,
            "metrics": about.get("metrics") or {},
            "extra_fields": about.get("extra_fields") or {},
        }
    return rows


def polled_verdict(outcome: RolloutOutcome, terms: Terms) -> Verdict:
    """Return how a rollout ended, in the vocabulary of 0.3.3."""
    failure = outcome.failure
    if outcome.status is OutcomeStatus.CANCELLED:
        return Verdict("cancelled", "cancelled")
    if failure is not None and failure.reason is FailureReason.TRAINER_LOST:
        return Verdict("failure", failure.message, "lease_expired")
    if failure is not None and failure.boundary == "server":
        return Verdict("failure", failure.message or str(failure.reason), "internal_error")
    return grader_verdict(outcome, terms) if terms.grade else agent_verdict(outcome)


def polled_body(outcome: RolloutOutcome, terms: Terms) -> dict[str, Any]:
    """Return the answer to a poll for a rollout that has ended."""
    verdict = polled_verdict(outcome, terms)
    rows = sample_rows(outcome, terms, rewarded=verdict.status == "success")
    return {"rollout_id": outcome.rollout_id, "sample": _only(outcome, rows)} | verdict.row()


def _failed(outcome: RolloutOutcome) -> Verdict:
    failure = outcome.failure
    message = failure.message if failure is not None else ""
    category = error_category(outcome) or RolloutErrorCategory.AGENT_ERROR
    return Verdict("failure", message or f"the rollout ended {outcome.status}", str(category))
