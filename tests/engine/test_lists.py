"""C9: lists of rollouts show what a rollout does and how it ended, and filters select by it."""

import asyncio

import pytest

from osmosis_grpc.engine import Engine, EngineConfig
from osmosis_grpc.protocol.types import RolloutFilter, RolloutState
from osmosis_grpc.storage import MemoryJournal, SqliteJournal
from osmosis_grpc.supervise import Supervisor
from tests.engine.conftest import FAST, Clock, Host, as_loop
from tests.engine.test_journal import Talker, keeping
from tests.waiting import until


async def listed(h, newest_first=False, limit=100, **filters):
    """The rows of all pages."""
    found, place = [], 0
    while True:
        where = RolloutFilter(**filters)
        rows, place = await h.engine.rollouts.page("me", place, limit, where, newest_first=newest_first)
        found += rows
        if not place:
            return found


async def names(h, **filters):
    return [row.rollout_id for row in await listed(h, **filters)]


async def agent(ctx):
    """Waits, raises or completes, by the rollout's name."""
    await ctx.chat(ctx.request.messages)
    if ctx.request.rollout_id.startswith("wait"):
        await asyncio.Event().wait()
    if ctx.request.rollout_id.startswith("fail"):
        raise LookupError("no such city: Atlantis\nsecond line")
    return ctx.complete(reward=float(ctx.request.label or 0))


USER = [{"role": "user", "content": "hello"}]


async def test_a_row_has_reward_failure_and_counts(hosting):
    async with hosting(agent) as h:
        await h.run("done", messages=USER, label="0.5")
        await h.run("fail", messages=USER)
        record = await h.start("wait", messages=USER)
        await h.until(lambda: record.run.meter.so_far().chats == 1)
        done, failed, waiting = await listed(h)
        assert (done.state, done.reward, done.failure_reason, done.chats) == (RolloutState.COMPLETED, 0.5, "", 1)
        assert (failed.reward, failed.failure_reason) == (None, "AGENT_EXCEPTION")
        assert (done.finish_reason, failed.finish_reason, waiting.finish_reason) == ("stop", "error", "")
        assert failed.failure_summary == "LookupError: no such city: Atlantis"
        assert done.progress_time is failed.progress_time is None
        assert (waiting.reward, waiting.chats, waiting.activity.description) == (None, 1, "agent")
        assert waiting.accept_time <= waiting.progress_time
        assert (done.prompt_tokens, done.response_tokens) == done_tokens(h, "done")
        assert waiting.prompt_tokens == done.prompt_tokens > 0


def done_tokens(h, name):
    metrics = next(each for each in h.trainer.outcomes if each.rollout_id == name).metrics
    return metrics.prompt_tokens, metrics.response_tokens


@pytest.fixture(params=["memory", "disk"])
async def host(request, tmp_path):
    """An engine with either journal. Settled rollouts are in memory only with the first one."""
    journal = MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path)
    clock = Clock()
    try:
        loops = [as_loop(agent, lambda request: [])]
        async with Engine(
            loops, EngineConfig(**FAST), supervisor=Supervisor("the engine", system=clock), journal=journal
        ) as engine:
            yield Host(engine, clock, [])
    finally:
        journal.close()
        await asyncio.sleep(0)


async def test_filters_go_over_memory_and_disk(host):
    for name, label in (("a", "0"), ("b", "1"), ("fail", None)):
        await host.run(name, messages=USER, label=label)
    await host.start("wait", messages=USER)
    assert await names(host) == ["a", "b", "fail", "wait"]
    assert await names(host, newest_first=True) == ["wait", "fail", "b", "a"]
    assert await names(host, newest_first=True, limit=1) == ["wait", "fail", "b", "a"]
    assert await names(host, min_reward=0.5) == ["b"]
    assert await names(host, max_reward=0.5) == ["a"]
    assert await names(host, failure_reasons=["AGENT_EXCEPTION"]) == ["fail"]
    assert await names(host, failure_reasons=["TOOL_EXCEPTION"]) == []
    assert await names(host, finish_reason="stop") == ["a", "b"]
    assert await names(host, finish_reason="error") == ["fail"]
    assert await names(host, agent_loop="agent", states=[RolloutState.RUNNING]) == ["wait"]
    assert await names(host, agent_loop="other") == []
    assert [row.failure_summary for row in await listed(host, states=[RolloutState.FAILED])] == [
        "LookupError: no such city: Atlantis"
    ]


async def test_stalled_selects_unfinished_rollouts_without_progress(hosting):
    async with hosting(agent) as h:
        await h.run("done", messages=USER)
        first = await h.start("wait1", messages=USER)
        await h.until(lambda: first.run.meter.so_far().chats == 1)
        h.clock.ahead = 60.0
        second = await h.start("wait2", messages=USER)
        await h.until(lambda: second.run.meter.so_far().chats == 1)
        assert await names(h, stalled=30.0) == ["wait1"]
        assert await names(h, stalled=90.0) == []
        h.clock.ahead = 120.0
        assert await names(h, stalled=30.0) == ["wait1", "wait2"]
        assert await names(h, stalled=30.0, newest_first=True, limit=1) == ["wait2", "wait1"]


async def test_a_rollout_that_is_settled_while_the_journal_is_read_is_listed(tmp_path, monkeypatch):
    class Gated(Talker):
        async def run(self, ctx):
            await opened.wait()
            return await super().run(ctx)

    async def late(self, *selection, **order):
        found = await entries(self, *selection, **order)
        read.set()
        await left.wait()
        return found

    opened, read, left, entries = asyncio.Event(), asyncio.Event(), asyncio.Event(), SqliteJournal.entries
    async with keeping(tmp_path / "state", Gated()) as h:
        record = await h.start()
        monkeypatch.setattr(SqliteJournal, "entries", late)
        listed = asyncio.ensure_future(h.engine.rollouts.page("me"))
        await read.wait()
        opened.set()
        await h.settled(record)
        await until(lambda: not h.in_memory)
        left.set()
        rows, _ = await listed
        assert [row.rollout_id for row in rows] == ["r1"]
