"""The life of a rollout as a table. Pure: no clock, no tasks, no I/O.

ACCEPTED, QUEUED, RUNNING, REPORTING, then one terminal state. REPORTING lasts from the
decision about the end to its commit; the commit is the terminal state. What has no row is a
mistake of ours and raises.
"""

from enum import StrEnum

from osmosis_grpc.types import CompletionStatus, RolloutState


class Step(StrEnum):
    """What can happen to a rollout."""

    QUEUE = "queue"
    START = "start"
    REPORT = "report"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[RolloutState, Step], RolloutState] = {
    (RolloutState.ACCEPTED, Step.QUEUE): RolloutState.QUEUED,
    (RolloutState.ACCEPTED, Step.START): RolloutState.RUNNING,
    (RolloutState.ACCEPTED, Step.REPORT): RolloutState.REPORTING,
    (RolloutState.QUEUED, Step.START): RolloutState.RUNNING,
    (RolloutState.QUEUED, Step.REPORT): RolloutState.REPORTING,
    (RolloutState.RUNNING, Step.REPORT): RolloutState.REPORTING,
    (RolloutState.REPORTING, Step.COMPLETE): RolloutState.COMPLETED,
    (RolloutState.REPORTING, Step.FAIL): RolloutState.FAILED,
    (RolloutState.REPORTING, Step.CANCEL): RolloutState.CANCELLED,
    (RolloutState.REPORTING, Step.EXPIRE): RolloutState.DEADLINE_EXCEEDED,
}

TERMINAL = frozenset(RolloutState(status) for status in CompletionStatus)

ENDS: dict[CompletionStatus, Step] = {
    CompletionStatus.COMPLETED: Step.COMPLETE,
    CompletionStatus.FAILED: Step.FAIL,
    CompletionStatus.CANCELLED: Step.CANCEL,
    CompletionStatus.DEADLINE_EXCEEDED: Step.EXPIRE,
}
"""The step that commits each status."""


class LifecycleError(RuntimeError):
    """A step that the table does not know."""


def advance(state: RolloutState, step: Step) -> RolloutState:
    """The state after a step."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise LifecycleError(f"{step} does not follow {state}") from None
