"""The Osmosis SDK's states and error categories for the ends of rollouts. The legacy HTTP contract reports them."""

import builtins
from enum import StrEnum

from osmosis_grpc.protocol.types import FailureReason, RolloutOutcome


class RolloutErrorCategory(StrEnum):
    """The kind of an error, in the Osmosis SDK's words."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    LEASE_EXPIRED = "lease_expired"
    INTERNAL_ERROR = "internal_error"


class GraderStatus(StrEnum):
    """How a grader ended, in the Osmosis SDK's words."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


_BY_REASON = {
    FailureReason.AGENT_TIMEOUT: RolloutErrorCategory.TIMEOUT,
    FailureReason.GRADER_TIMEOUT: RolloutErrorCategory.TIMEOUT,
    FailureReason.AGENT_RESULT_INVALID: RolloutErrorCategory.VALIDATION_ERROR,
    FailureReason.GRADER_RESULT_INVALID: RolloutErrorCategory.VALIDATION_ERROR,
}
_BY_CLASS: tuple[tuple[type[BaseException], RolloutErrorCategory], ...] = (
    (TimeoutError, RolloutErrorCategory.TIMEOUT),
    (ValueError, RolloutErrorCategory.VALIDATION_ERROR),
    (TypeError, RolloutErrorCategory.VALIDATION_ERROR),
    (AssertionError, RolloutErrorCategory.VALIDATION_ERROR),
)
_VALUE_ERRORS = frozenset({"BadRewardError", "JSONDecodeError", "ValidationError"})
"""Well-known subclasses of ValueError that are not built in."""


def error_category(outcome: RolloutOutcome) -> RolloutErrorCategory | None:
    """Return the category of a rollout that did not complete; None for one that completed."""
    failure = outcome.failure
    if failure is None:
        return None
    known = _BY_REASON.get(failure.reason) if isinstance(failure.reason, FailureReason) else None
    if known is not None:
        return known
    name = failure.causes[0].type if failure.causes else ""
    cls = ValueError if name in _VALUE_ERRORS else getattr(builtins, name, None)
    if isinstance(cls, type):
        return next(
            (category for base, category in _BY_CLASS if issubclass(cls, base)), RolloutErrorCategory.AGENT_ERROR
        )
    return RolloutErrorCategory.AGENT_ERROR
