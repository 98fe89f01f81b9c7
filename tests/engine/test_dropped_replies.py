"""Which replies are marked as dropped, and how they share segments with the others."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.types import ChatPurpose
from osmosis_grpc.testing import run_rollout
from tests.dropping import CASES, GO, Drops, different, marked
from tests.engine.test_journal import Until, crashed, keeping


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_replies_that_the_agent_left_are_marked(case):
    outcome = await run_rollout(Drops(), different, metadata={"case": case.__name__})
    assert marked(outcome.samples["main"]) == CASES[case]
    assert sum(segment.sampled for segment in outcome.samples["main"].segments) == 3 * outcome.metrics.num_llm_calls


class Says(RolloutAgentLoop):
    """Edits a reply, which nothing marks, and says that it has dropped it."""

    name = "says"

    async def run(self, ctx):
        reply = await ctx.chat([GO])
        await ctx.chat([GO, {"role": "assistant", "content": "Another text."}, GO])
        ctx.drop(reply)
        return ctx.complete(reward=1.0)


async def test_an_agent_can_say_that_it_dropped_a_reply():
    outcome = await run_rollout(Says(), different)
    assert marked(outcome.samples["main"]) == ([(2,)], [(1,)])


class Together(RolloutAgentLoop):
    """Asks the same twice at the same time, and then a judge. Nothing says which reply it takes."""

    name = "together"
    replayable = True

    async def run(self, ctx):
        await asyncio.gather(*(ctx.chat([GO]) for _ in range(2)))
        await ctx.chat([GO], purpose=ChatPurpose.JUDGE)
        return ctx.complete(reward=1.0)


@pytest.mark.parametrize("crashes", [1, 2])
async def test_equal_questions_at_the_same_time_stay_so_after_a_restart(tmp_path, crashes):
    folder = await crashed(tmp_path / "state", Together(), 3)
    for _ in range(crashes - 1):
        async with keeping(folder, Together(), policy=Until(3)) as host:
            await host.until(lambda: host.trainer.chats)
            record = host.engine.rollouts.get("me", "r1")
            await host.until(lambda: record.trail.last_event_number == record.trail.written)
            folder = host.crash()
    async with keeping(folder, Together()) as host:
        outcome = (await host.get()).outcome
    assert marked(outcome.samples["main"]) == ([(1,), (2,)], [])
