"""Who runs, who waits, who is refused, and for how long what has ended is kept."""

import asyncio
from dataclasses import replace

import pytest

from osmosis_grpc.engine import EngineConfig, Tenant
from osmosis_grpc.protocol.errors import NotFound, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import InitRequest, OutcomeStatus, RolloutFilter, RolloutRequest, RolloutState, events

USER = {"role": "user", "content": "hello"}


async def done(ctx):
    return ctx.complete([USER], reward=1.0)


class Gates:
    """An agent that runs until it is let go; knows who runs and who ran."""

    def __init__(self):
        self.started = []
        self.running = set()
        self.most = 0
        self._gates = {}

    async def __call__(self, ctx):
        name = ctx.request.rollout_id
        self.started.append(name)
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            await self._gate(name).wait()
        finally:
            self.running.discard(name)
        return ctx.complete([USER], reward=1.0)

    def _gate(self, name):
        return self._gates.setdefault(name, asyncio.Event())

    def release(self, *names):
        for name in names:
            self._gate(name).set()


def counts(h):
    capacity = h.engine.capacity()
    return capacity.running, capacity.queued


async def kept(h):
    return [row.rollout_id for row in (await h.engine.rollouts.page("me"))[0]]


async def test_no_more_than_max_concurrent_run(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=2) as h:
        records = [await h.start(f"r{n}") for n in range(5)]
        await h.until(lambda: len(gates.started) == 2)
        assert [r.state for r in records] == [RolloutState.RUNNING] * 2 + [RolloutState.QUEUED] * 3
        assert counts(h) == (2, 3)
        assert records[2].activity().description == "queued"
        gates.release("r1")
        await h.until(lambda: gates.started == ["r0", "r1", "r2"])
        assert counts(h) == (2, 2)
        gates.release("r0", "r2", "r3", "r4")
        for record in records:
            assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
            h.check_whole(record)
        assert gates.most == 2
        assert gates.started == ["r0", "r1", "r2", "r3", "r4"]
        assert counts(h) == (0, 0)


async def test_priority_leaves_the_queue_first_then_arrival(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=1, max_queued=6) as h:
        await h.start("first")
        for name, priority in [("a", 0), ("b", 5), ("c", 5), ("d", 1), ("e", -1), ("f", 0)]:
            await h.start(name, priority=priority)
        gates.release(*"abcdef", "first")
        await h.until(lambda: len(gates.started) == 7)
        assert gates.started == ["first", "b", "c", "d", "a", "f", "e"]


def test_the_queue_is_twice_as_long_as_what_may_run():
    assert EngineConfig(max_concurrent=3).queue_limit == 6
    assert EngineConfig(max_concurrent=3, max_queued=0).queue_limit == 0


@pytest.mark.parametrize("max_queued", [0, 1, None])
async def test_beyond_the_queue_a_rollout_is_refused_and_nothing_kept(hosting, max_queued):
    gates = Gates()
    async with hosting(gates, max_concurrent=2, max_queued=max_queued) as h:
        room = 2 + (4 if max_queued is None else max_queued)
        names = [f"r{n}" for n in range(room)]
        for name in names:
            await h.start(name)
        for _ in range(3):
            with pytest.raises(ResourceExhausted, match=f"2 rollouts run and {room - 2} wait") as raised:
                await h.init("late", idempotency_key="k")
            assert raised.value.retry_after > 0
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "late")
        assert await kept(h) == names
        assert counts(h) == (2, room - 2)
        assert (await h.init("r0"))[1] is False
        gates.release(*names, "late")
        await h.until(lambda: counts(h) == (0, 0))
        assert (await h.run("late", idempotency_key="k")).status is OutcomeStatus.COMPLETED


async def test_waiting_counts_against_the_timeout(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=1) as h:
        await h.start("busy")
        record = await h.start("late", agent_timeout=0.03)
        assert record.state is RolloutState.QUEUED
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)
        assert "queued" in outcome.failure.message
        assert outcome.reward is None
        assert outcome.metrics.queue_time > 0
        assert [type(kind) for kind in h.kinds(record)] == [events.Accepted, events.Ended, events.Delivered]
        assert counts(h) == (1, 0)
        gates.release("busy")
        await h.until(lambda: counts(h) == (0, 0))
        assert gates.started == ["busy"]
        h.check_whole(record)


async def test_a_rollout_that_waited_has_the_rest_of_its_time(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=1) as h:
        await h.start("busy")
        record = await h.start("late", agent_timeout=0.1)
        await asyncio.sleep(0.02)  # its agent_timeout begins
        gates.release("busy")
        await h.until(lambda: record.state is RolloutState.RUNNING)
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
        assert outcome.failure.boundary == "agent"
        assert h.kinds(record, events.Started)[0].queue_time > 0


async def test_a_cancelled_rollout_leaves_its_place_in_the_queue(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=1, max_queued=1) as h:
        await h.start("busy")
        waiting = await h.start("waiting")
        with pytest.raises(ResourceExhausted):
            await h.init("next")
        h.engine.cancel("me", rollout_id="waiting")
        assert counts(h) == (1, 0)
        following = await h.start("next")
        gates.release("busy", "next")
        assert (await h.settled(following)).status is OutcomeStatus.COMPLETED
        assert (await h.settled(waiting)).status is OutcomeStatus.CANCELLED
        assert gates.started == ["busy", "next"]


# What has ended


TEXT = {"role": "user", "content": "x" * 5000}


def big(h, record):
    return h.engine.journal.size(record.rollout_id, record.attempt)


async def test_beyond_the_budget_the_oldest_delivered_go(hosting):
    async with hosting(done, memory_budget=40_000) as h:
        names = [f"r{n}" for n in range(10)]
        for name in names:
            record = await h.start(name, messages=[TEXT])
            await h.settled(record)
            assert big(h, record) > 10_000
            await h.until(lambda: h.engine.capacity().undelivered == 0)
        left = await kept(h)
        assert left == names[-len(left) :]
        sizes = [big(h, h.engine.rollouts.get("me", name)) for name in left]
        assert sum(sizes) <= 40_000 < sum(sizes) + sizes[0]
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r0")
        assert h.engine.journal.events("r0", 1, 0, 10) == []


async def test_what_runs_counts_and_does_not_go(hosting):
    """Settled rollouts go for its sake; what is above the budget then is refused until something has ended."""
    gates = Gates()
    async with hosting(gates, memory_budget=140_000) as h:
        for n in range(6):
            gates.release(f"r{n}")
            await h.run(f"r{n}", messages=[TEXT])
        record = await h.start("live", messages=[TEXT] * 10)
        also = await h.start("also", messages=[TEXT] * 10)
        with pytest.raises(ResourceExhausted, match="memory_budget of 140000 bytes is full") as raised:
            await h.init("more", messages=[TEXT])
        assert await kept(h) == ["live", "also"]
        assert raised.value.retry_after > 0
        gates.release("live")
        gates.release("also")
        await h.until(lambda: record.delivery.settled and also.delivery.settled)
        assert record.delivery.outcome.status is OutcomeStatus.COMPLETED
        assert h.trainer.results("live") == [record.delivery.outcome.result_id]
        gates.release("more")
        assert (await h.run("more", messages=[TEXT])).status is OutcomeStatus.COMPLETED


async def test_undelivered_ones_never_go_and_fill_the_server(hosting):
    async with hosting(done, memory_budget=40_000) as h:
        away = h.Trainer()
        away.answers = [Unavailable("away")] * 100_000
        names = [f"r{n}" for n in range(10)]
        accepted = []
        with pytest.raises(ResourceExhausted, match="undelivered") as raised:
            for name in names:
                record = await h.start(name, messages=[TEXT], trainer=away)
                accepted.append(name)
                await h.until(lambda record=record: record.delivery.undelivered)
        assert raised.value.retry_after > 0
        assert 2 < len(accepted) < 10
        assert await kept(h) == accepted
        assert h.engine.capacity().undelivered == len(accepted)
        with pytest.raises(ResourceExhausted):
            await h.init("r9", messages=[TEXT])
        assert (await h.init("r0", messages=[TEXT], trainer=away))[1] is False

        away.answers = []
        await h.until(lambda: h.engine.capacity().undelivered == 0)
        assert {c.rollout_id for c in away.outcomes} == set(accepted)
        assert (await h.run("r9", messages=[TEXT])).status is OutcomeStatus.COMPLETED


async def test_delivered_ones_go_before_older_undelivered_ones(hosting):
    async with hosting(done, memory_budget=40_000) as h:
        away = h.Trainer()
        away.answers = [Unavailable("away")] * 100_000
        stuck = await h.start("stuck", messages=[TEXT], trainer=away)
        await h.until(lambda: stuck.delivery.undelivered)
        for n in range(6):
            await h.run(f"r{n}", messages=[TEXT])
        left = await kept(h)
        assert left[0] == "stuck"
        assert "r0" not in left
        assert left[-1] == "r5"


async def test_what_has_ended_is_kept_for_its_time(hosting):
    runs = []

    async def run(ctx):
        runs.append(ctx.request.rollout_id)
        return ctx.complete([USER])

    async with hosting(run, record_ttl=100.0) as h:
        record = await h.start("r1")
        await h.settled(record)
        h.clock.ahead += 90.0
        await asyncio.sleep(0.06)  # more than one sweep
        assert await h.init("r1") == (record, False)
        h.clock.ahead += 11.0
        await h.until_listed()
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r1")
        assert h.engine.journal.events("r1", 1, 0, 10) == []
        again, started = await h.init("r1")
        assert started
        await h.settled(again)
        assert runs == ["r1", "r1"]


async def test_what_lives_has_no_such_time(hosting):
    gates = Gates()
    async with hosting(gates, record_ttl=100.0, max_concurrent=1) as h:
        running, queued = await h.start("running"), await h.start("queued")
        h.clock.ahead += 1000.0
        await asyncio.sleep(0.06)  # more than one sweep
        assert await kept(h) == ["running", "queued"]
        gates.release("running", "queued")
        for record in (running, queued):
            assert (await h.settled(record)).status is OutcomeStatus.COMPLETED


async def test_rollouts_are_listed_in_pages(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=3) as h:
        for n in range(7):
            await h.start(f"r{n}")
        await h.start("theirs", owner="another")
        pages, place = [], 0
        while True:
            rows, place = await h.engine.rollouts.page("me", place, 3)
            pages.append([row.rollout_id for row in rows])
            if not place:
                break
        assert pages == [["r0", "r1", "r2"], ["r3", "r4", "r5"], ["r6"]]
        queued, _ = await h.engine.rollouts.page("me", where=RolloutFilter(states=[RolloutState.QUEUED]))
        assert [row.rollout_id for row in queued] == ["r3", "r4", "r5", "r6"]
        assert [row.rollout_id for row in (await h.engine.rollouts.page("another"))[0]] == ["theirs"]


# Several tenants


class Crowd:
    """Trainers that each count as a tenant of their own."""

    def __init__(self, h, *names):
        self.tenants = {name: Tenant() for name in names}
        self._h = h
        self._trainers = {name: h.Trainer(key=name) for name in names}

    def peer(self, name):
        return replace(self._trainers[name].peer, tenant=self.tenants[name])

    async def start(self, name, rollout_id, **fields):
        request = RolloutRequest(rollout_id=rollout_id, **fields)
        init = InitRequest(request=request, digest=repr(request).encode())
        return await self._h.engine.init(init, owner="me", peer=self.peer(name))

    @property
    def running(self):
        return {name: tenant.running for name, tenant in self.tenants.items()}

    @property
    def open(self):
        return {name: tenant.open for name, tenant in self.tenants.items()}


async def test_a_free_slot_goes_to_the_tenant_with_the_fewest_running(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=4, max_queued=20) as h:
        crowd = Crowd(h, "a", "b", "c")
        for n in range(8):
            await crowd.start("a", f"a{n}")
        for n in range(3):
            await crowd.start("b", f"b{n}")
        await crowd.start("c", "c0", priority=-5)
        await h.until(lambda: len(gates.started) == 4)
        assert crowd.running == {"a": 4, "b": 0, "c": 0}
        for freed, following in (("a0", "b0"), ("a1", "c0"), ("a2", "a4"), ("b0", "b1"), ("c0", "b2"), ("b1", "a5")):
            gates.release(freed)
            await h.until(lambda following=following: gates.started[-1] == following)
        assert crowd.running == {"a": 3, "b": 1, "c": 0}
        assert gates.most == 4
        gates.release(*(f"{name}{n}" for name in "abc" for n in range(8)))
        await h.until(lambda: counts(h) == (0, 0))
        assert len(gates.started) == 12
        assert crowd.running == crowd.open == {"a": 0, "b": 0, "c": 0}


async def test_within_a_tenant_priority_counts_and_between_equals_too(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=2, max_queued=20) as h:
        crowd = Crowd(h, "a", "b")
        await crowd.start("a", "first-a")
        await crowd.start("b", "first-b")
        for name, priority in (("a1", 0), ("b1", 1), ("a2", 5), ("b2", 0)):
            await crowd.start(name[0], name, priority=priority)
        await h.until(lambda: len(gates.started) == 2)
        gates.release("first-a")
        await h.until(lambda: gates.started[-1] == "a2")
        gates.release("first-b")
        await h.until(lambda: gates.started[-1] == "b1")
        gates.release("a1", "a2", "b1", "b2")
        await h.until(lambda: counts(h) == (0, 0))


async def test_a_rollout_that_is_pointed_elsewhere_counts_there(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=2, max_queued=20) as h:
        crowd = Crowd(h, "a", "b")
        for name in ("a0", "a1", "a2", "a3"):
            await crowd.start("a", name)
        await h.until(lambda: len(gates.started) == 2)
        assert (crowd.running, crowd.open) == ({"a": 2, "b": 0}, {"a": 4, "b": 0})
        for name in ("a0", "a1", "a3"):  # two that run, and one that waits
            assert (await crowd.start("b", name))[1] is False
        assert (crowd.running, crowd.open) == ({"a": 0, "b": 2}, {"a": 1, "b": 3})
        await crowd.start("b", "b0", priority=9)
        gates.release("a0")
        await h.until(lambda: gates.started[-1] == "a2")  # the only one of a tenant that has none running
        gates.release("a1")
        await h.until(lambda: gates.started[-1] == "b0")
        gates.release("a2", "a3", "b0")
        await h.until(lambda: counts(h) == (0, 0))
        assert sorted(gates.started) == ["a0", "a1", "a2", "a3", "b0"]
        assert crowd.running == crowd.open == {"a": 0, "b": 0}


async def test_one_that_waits_may_be_pointed_back_and_forth(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=1, max_queued=20) as h:
        crowd = Crowd(h, "a", "b")
        await crowd.start("a", "busy")
        await crowd.start("a", "waits")
        for name in ("b", "a", "b", "a", "b"):
            await crowd.start(name, "waits")
        assert crowd.open == {"a": 1, "b": 1}
        assert counts(h) == (1, 1)
        gates.release("busy", "waits")
        await h.until(lambda: counts(h) == (0, 0))
        assert gates.started == ["busy", "waits"]
        assert crowd.running == crowd.open == {"a": 0, "b": 0}


async def test_one_that_has_ended_is_counted_nowhere_however_it_is_pointed(hosting):
    gates = Gates()
    async with hosting(gates, max_concurrent=2, max_queued=4) as h:
        crowd = Crowd(h, "a", "b")
        record, _ = await crowd.start("a", "over")
        queued = [(await crowd.start("a", f"a{n}"))[0] for n in range(3)]
        gates.release("over")
        await h.settled(record)
        await crowd.start("b", "over")
        h.engine.cancel("me", rollout_id="a2")
        await h.settled(queued[2])
        await crowd.start("b", "a2")
        assert crowd.open == {"a": 2, "b": 0}
        gates.release("a0", "a1")
        await h.until(lambda: counts(h) == (0, 0))
        assert crowd.running == crowd.open == {"a": 0, "b": 0}
