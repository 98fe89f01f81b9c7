"""The table of a rollout's life against one written down apart from it."""

import itertools

import pytest

from osmosis_grpc.engine.lifecycle import ENDS, TERMINAL, TRANSITIONS, LifecycleError, Step, advance
from osmosis_grpc.types import CompletionStatus, RolloutState

EXPECTED = {
    "ACCEPTED": {"queue": "QUEUED", "start": "RUNNING", "report": "REPORTING"},
    "QUEUED": {"start": "RUNNING", "report": "REPORTING"},
    "RUNNING": {"report": "REPORTING"},
    "REPORTING": {"complete": "COMPLETED", "fail": "FAILED", "cancel": "CANCELLED", "expire": "DEADLINE_EXCEEDED"},
    "COMPLETED": {},
    "FAILED": {},
    "CANCELLED": {},
    "DEADLINE_EXCEEDED": {},
}


def test_the_expectation_knows_every_state():
    assert set(EXPECTED) == {state.value for state in RolloutState}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(RolloutState, Step)))
def test_every_pair(state, step):
    expected = EXPECTED[state].get(step)
    if expected is None:
        with pytest.raises(LifecycleError, match=f"{step.value} does not follow {state.value}"):
            advance(state, step)
    else:
        assert advance(state, step) is RolloutState(expected)


def test_the_table_has_no_rows_beyond():
    rows = {(state, step) for state, steps in EXPECTED.items() for step in steps}
    assert set(TRANSITIONS) == rows


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "DEADLINE_EXCEEDED"])
def test_no_way_leads_out_of_a_terminal_state(state):
    assert state in TERMINAL
    assert not [step for step in Step if (RolloutState(state), step) in TRANSITIONS]


@pytest.mark.parametrize("state", ["ACCEPTED", "QUEUED", "RUNNING", "REPORTING"])
def test_live_states_are_not_terminal(state):
    assert state not in TERMINAL


@pytest.mark.parametrize("status", list(CompletionStatus))
def test_every_status_has_a_step_that_commits_it(status):
    assert advance(RolloutState.REPORTING, ENDS[status]) == status.value


def test_every_state_can_be_reached():
    reached = {RolloutState.ACCEPTED}
    for _ in RolloutState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(RolloutState)
