"""Termination: how a rollout ends, with status, reason and failure. Only a rollout's first termination counts."""

from dataclasses import dataclass

from osmosis_grpc.agent.import_hints import with_import_hint
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.protocol.errors import Boundary
from osmosis_grpc.protocol.types import AbandonReason, Failure, FailureReason, OutcomeStatus
from osmosis_grpc.protocol.types.outcome import clip

CANCEL_REASON = "cancel_reason"
"""The key in an outcome's extra_fields for the reason that the caller of a cancel gave."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How a rollout ends."""

    status: OutcomeStatus
    finish_reason: str = ""
    failure: Failure | None = None
    result: RunOutcome | None = None
    """The result of the agent's run, or the values of an outcome without a run. None if there are none."""
    deliver: bool = True
    """False for a superseded attempt, which sends no outcome."""

    @property
    def abandon_reason(self) -> AbandonReason:
        """The reason for which open chats are abandoned."""
        if not self.deliver:
            return AbandonReason.SUPERSEDED
        of_status = {
            OutcomeStatus.CANCELLED: AbandonReason.CANCELLED,
            OutcomeStatus.DEADLINE_EXCEEDED: AbandonReason.DEADLINE_EXCEEDED,
        }
        return of_status.get(self.status, AbandonReason.ENDED)

    @classmethod
    def failed(
        cls,
        boundary: Boundary,
        message: str,
        *,
        reason: FailureReason = FailureReason.SERVER_ERROR,
        retryable: bool = False,
        finish_reason: str = "error",
    ) -> "Termination":
        """Return FAILED for a failure without an exception."""
        return cls(OutcomeStatus.FAILED, finish_reason, Failure(boundary, clip(message), retryable, reason=reason))

    @classmethod
    def server_failed(
        cls, reason: FailureReason = FailureReason.SERVER_ERROR, why: str = "", finish_reason: str = "internal"
    ) -> "Termination":
        """Return FAILED (server, retryable). The default reason means that the server's own code has failed."""
        return cls.failed("server", why, retryable=True, reason=reason, finish_reason=finish_reason)

    @classmethod
    def raised(cls, error: BaseException) -> "Termination":
        """Return FAILED for an exception that the agent's run() raised."""
        return cls(OutcomeStatus.FAILED, "error", with_import_hint(Failure.of(error), error))

    @classmethod
    def cancelled(cls, reason: str = "") -> "Termination":
        """Return CANCELLED, for a rollout that its trainer cancelled. The reason goes into the extra fields."""
        extra = {CANCEL_REASON: reason} if reason else None
        return cls(OutcomeStatus.CANCELLED, "cancelled", result=RunOutcome(messages=None, extra_fields=extra))

    @classmethod
    def trainer_lost(cls, why: str) -> "Termination":
        """Return FAILED (trainer, retryable), for a trainer that has left."""
        reason = FailureReason.TRAINER_LOST
        return cls.failed("trainer", why, retryable=True, reason=reason, finish_reason="trainer_lost")

    @classmethod
    def timed_out(cls, boundary: Boundary, message: str, reason: FailureReason) -> "Termination":
        """Return DEADLINE_EXCEEDED, for a rollout whose agent_timeout or grader_timeout ran out."""
        failure = Failure(boundary, message, True, reason=reason)
        return cls(OutcomeStatus.DEADLINE_EXCEEDED, "timeout", failure)

    @classmethod
    def returned(cls, result: RunOutcome) -> "Termination":
        """Return the termination for a run that returned: COMPLETED, or FAILED with the result's failure."""
        if result.failure is not None:
            return cls(OutcomeStatus.FAILED, result.finish_reason or "error", result.failure, result)
        return cls(OutcomeStatus.COMPLETED, result.finish_reason or "stop", result=result)
