"""The life of a rollout as a table. Pure: no clock, no tasks, no I/O.

ACCEPTED, QUEUED, RUNNING, REPORTING, then one terminal state. REPORTING lasts from the decision about the end to the
commit of the end.
"""

from osmosis_grpc.types import CompletionStatus, RolloutState

TERMINAL = frozenset(RolloutState(status) for status in CompletionStatus)

TRANSITIONS: dict[RolloutState, frozenset[RolloutState]] = {
    RolloutState.ACCEPTED: frozenset({RolloutState.QUEUED, RolloutState.RUNNING, RolloutState.REPORTING}),
    RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.REPORTING}),
    RolloutState.RUNNING: frozenset({RolloutState.REPORTING}),
    RolloutState.REPORTING: TERMINAL,
}
"""The states that may follow each state; none follows a terminal one."""


class LifecycleError(RuntimeError):
    """A transition that the table does not have: a mistake in the engine."""


def advance(state: RolloutState, following: RolloutState) -> RolloutState:
    """Return the following state. Raises LifecycleError if it does not follow `state`."""
    if following not in TRANSITIONS.get(state, ()):
        raise LifecycleError(f"{following} does not follow {state}")
    return following
