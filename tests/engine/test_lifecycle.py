"""The states of a rollout, against a table written apart from the engine's, and the call of ended()."""

import asyncio
import itertools

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine.record import TERMINAL, TRANSITIONS, LifecycleError, advance
from osmosis_grpc.protocol.errors import Internal
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


class Agent(RolloutAgentLoop):
    name = "agent"

    def __init__(self, raises=None):
        self.calls = []
        self.raises = raises

    def get_tools(self, request):
        if request.metadata.get("refuse"):
            raise RuntimeError("no")
        return []

    async def run(self, ctx):
        if ctx.request.metadata.get("hang"):
            await asyncio.Event().wait()
        return ctx.complete([])

    def ended(self, rollout_id, attempt):
        self.calls.append((rollout_id, attempt))
        if self.raises:
            raise self.raises


async def test_of_one_that_completed_one_that_was_refused_and_one_that_never_ran(hosting):
    agent = Agent()
    async with hosting(agent, max_concurrent=1) as h:
        await h.run("completed")
        with pytest.raises(Internal):
            await h.init("refused", metadata={"refuse": True})
        running = await h.start("running", metadata={"hang": True})
        waiting = await h.start("waiting")
        h.engine.cancel("me", rollout_id="waiting")
        await h.settled(waiting)
        assert agent.calls == [("completed", 1), ("refused", 1), ("waiting", 1)]
        newer = await h.start("running", attempt=2)
        await h.settled(newer)
        await h.settled(running)
    assert agent.calls[3:] == [("running", 1), ("running", 2)]


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
async def test_what_it_raises_harms_nobody(hosting, caplog, error):
    agent = Agent(error)
    async with hosting(agent) as h:
        assert (await h.run("one")).status == "COMPLETED"
        assert (await h.run("two")).status == "COMPLETED"
        assert h.engine.capacity().running == 0
    assert len(agent.calls) == 2
    assert "ended() of agent loop agent raised" in caplog.text
