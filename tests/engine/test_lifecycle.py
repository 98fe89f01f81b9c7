"""The table of a rollout's life against one written down apart from it."""

import itertools

import pytest

from osmosis_grpc.engine.record import TERMINAL, TRANSITIONS, LifecycleError, advance
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutState

EXPECTED = {
    "ACCEPTED": {"QUEUED", "RUNNING", "REPORTING"},
    "QUEUED": {"RUNNING", "REPORTING"},
    "RUNNING": {"REPORTING"},
    "REPORTING": {"COMPLETED", "FAILED", "CANCELLED", "DEADLINE_EXCEEDED"},
    "COMPLETED": set(),
    "FAILED": set(),
    "CANCELLED": set(),
    "DEADLINE_EXCEEDED": set(),
}


def test_the_expectation_knows_every_state():
    assert set(EXPECTED) == {state.value for state in RolloutState}


@pytest.mark.parametrize(("state", "following"), list(itertools.product(RolloutState, RolloutState)))
def test_every_pair(state, following):
    if following.value in EXPECTED[state.value]:
        assert advance(state, following) is following
    else:
        with pytest.raises(LifecycleError, match=f"{following.value} does not follow {state.value}"):
            advance(state, following)


@pytest.mark.parametrize("state", list(RolloutState))
def test_exactly_the_terminal_states_have_no_following_state(state):
    assert (state in TERMINAL) == (not EXPECTED[state.value])


@pytest.mark.parametrize("status", list(OutcomeStatus))
def test_every_status_is_a_state_that_follows_reporting(status):
    assert advance(RolloutState.REPORTING, RolloutState(status)) == status.value


def test_every_state_can_be_reached():
    reached = {RolloutState.ACCEPTED}
    for _ in RolloutState:
        reached |= {following for state in reached for following in TRANSITIONS.get(state, ())}
    assert reached == set(RolloutState)
