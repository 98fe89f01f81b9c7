"""RolloutAgentLoop.ended is called once for each rollout that get_tools was called for."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.errors import Internal


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
