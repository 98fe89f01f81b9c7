"""Cancel: whatever a rollout is doing, and even before it is there."""

import asyncio
import random

import pytest

from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.protocol.types import CancelResult, Group, OutcomeStatus, Receipt, RolloutState, events

USER = {"role": "user", "content": "hello"}


async def done(ctx):
    return ctx.complete([USER], reward=1.0)


async def hangs(ctx):
    await asyncio.Event().wait()


def counting(runs, then=done):
    async def run(ctx):
        runs.append((ctx.request.rollout_id, ctx.request.attempt))
        return await then(ctx)

    return run


def check_cancelled(h, record, reason=None):
    h.check_whole(record)
    outcome = record.delivery.outcome
    assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.CANCELLED, "cancelled")
    assert outcome.failure is outcome.reward is None
    asked = h.kinds(record, events.CancelAsked)
    assert len(asked) == 1
    if reason is not None:
        assert asked[0].reason == reason


async def test_a_running_rollout(hosting):
    async with hosting(hangs) as h:
        record = await h.start()
        await h.until(lambda: record.state is RolloutState.RUNNING)
        rows = h.engine.cancel("me", rollout_id="r1", reason="no longer needed")
        assert rows == [CancelResult("r1", 1, "CANCELLED", RolloutState.RUNNING)]
        await h.settled(record)
        check_cancelled(h, record, "no longer needed")
        assert h.engine.capacity().running == 0


async def test_a_rollout_that_stopped_at_once_is_left_alone(hosting):
    async with hosting(hangs, stop_again_after=(0.01,)) as h:
        record = await h.start()
        await h.until(lambda: record.state is RolloutState.RUNNING)
        h.engine.cancel("me", rollout_id="r1")
        await h.settled(record)
        await asyncio.sleep(0.1)  # time for what must not come
        assert h.escaped == []
        assert h.engine.capacity().abandoned == 0


async def test_a_rollout_that_is_stopped_for_its_deadline_is_not_cancelled(hosting):
    async def slow_to_stop(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await release.wait()

    stopping, release = asyncio.Event(), asyncio.Event()
    async with hosting(slow_to_stop, stop_again_after=(60.0,)) as h:
        record = await h.start(agent_timeout=0.02)
        await stopping.wait()
        rows = h.engine.cancel("me", rollout_id="r1")
        assert rows == [CancelResult("r1", 1, "ALREADY_ENDED", RolloutState.RUNNING)]
        release.set()
        assert (await h.settled(record)).status is OutcomeStatus.DEADLINE_EXCEEDED
        assert h.kinds(record, events.CancelAsked) == []
        h.check_whole(record)


async def test_a_running_rollout_keeps_what_it_had(hosting):
    async def run(ctx):
        await ctx.chat([USER])
        await asyncio.Event().wait()

    async with hosting(run) as h:
        record = await h.start()
        await h.until(lambda: h.kinds(record, events.ChatAnswered))
        h.engine.cancel("me", rollout_id="r1")
        outcome = await h.settled(record)
        assert outcome.messages == [USER, {"role": "assistant", "content": "hello"}]
        assert outcome.samples["main"].segments[0].sampled > 0
        assert outcome.samples["main"].reward is None


async def test_a_chat_in_flight_is_given_up(hosting):
    given_up = []

    async def silent(request):
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(request.chat_number)

    async def run(ctx):
        await ctx.chat([USER])

    async with hosting(run) as h:
        h.trainer.policy = silent
        record = await h.start()
        await h.until(lambda: h.trainer.chats)
        h.engine.cancel("me", rollout_id="r1")
        await h.settled(record)
        check_cancelled(h, record)
        assert given_up == [1]


async def test_a_queued_rollout(hosting):
    runs = []
    async with hosting(counting(runs, hangs), max_concurrent=1) as h:
        await h.start("busy")
        record = await h.start()
        rows = h.engine.cancel("me", rollout_id="r1", reason="why")
        assert rows == [CancelResult("r1", 1, "CANCELLED", RolloutState.CANCELLED)]
        await h.settled(record)
        check_cancelled(h, record, "why")
        assert [type(kind) for kind in h.kinds(record)] == [
            events.Accepted,
            events.CancelAsked,
            events.Ended,
            events.Delivered,
        ]
        assert runs == [("busy", 1)]


@pytest.mark.parametrize("agent", [done, hangs], ids=["COMPLETED", "DEADLINE_EXCEEDED"])
async def test_an_ended_rollout_stays_as_it_is(hosting, agent):
    async with hosting(agent) as h:
        record = await h.start(agent_timeout=0.03)
        outcome = await h.settled(record)
        newest = record.trail.last_event_number
        row = CancelResult("r1", 1, "ALREADY_ENDED", RolloutState(outcome.status))
        assert h.engine.cancel("me", rollout_id="r1") == [row]
        assert record.delivery.outcome is outcome
        assert record.trail.last_event_number == newest
        h.check_whole(record)


async def test_twice(hosting):
    async def slow_to_stop(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()

    release = asyncio.Event()
    async with hosting(slow_to_stop, stop_again_after=(60.0,)) as h:
        record = await h.start()
        await h.running()
        assert h.engine.cancel("me", rollout_id="r1", reason="first")[0].cancelled
        rows = h.engine.cancel("me", rollout_id="r1", reason="second")
        assert rows == [CancelResult("r1", 1, "CANCELLED", RolloutState.RUNNING)]
        assert record.activity().description == "stopping"
        release.set()
        await h.settled(record)
        assert h.engine.cancel("me", rollout_id="r1") == [
            CancelResult("r1", 1, "ALREADY_ENDED", RolloutState.CANCELLED)
        ]
        check_cancelled(h, record, "first")


async def test_while_get_tools_runs(hosting):
    gate, calls, runs = asyncio.Event(), [], []

    async def get_tools(request):
        calls.append(1)
        await gate.wait()
        return []

    async with hosting(counting(runs), get_tools=get_tools, max_concurrent=1, max_queued=0) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: calls)
        rows = h.engine.cancel("me", rollout_id="r1", reason="early")
        assert rows == [CancelResult("r1", 1, "CANCELLED", RolloutState.ACCEPTED)]
        gate.set()
        record, started = await asking
        assert started
        await h.settled(record)
        check_cancelled(h, record, "early")
        assert runs == []
        assert (await h.run("next")).status is OutcomeStatus.COMPLETED


async def test_while_a_further_attempt_is_being_accepted(hosting):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(request.attempt)
        if request.attempt == 1:
            return []
        await gate.wait()
        raise ValueError("no")

    async with hosting(hangs, get_tools=get_tools) as h:
        first = await h.start()
        asking = asyncio.create_task(h.init(attempt=2))
        await h.until(lambda: calls == [1, 2])
        assert h.engine.cancel("me", rollout_id="r1")[0].cancelled
        gate.set()
        with pytest.raises(Internal):
            await asking
        assert (await h.settled(first)).status is OutcomeStatus.CANCELLED


@pytest.mark.parametrize(("owner", "attempt"), [("another", 0), ("another", 2), ("me", 1)])
async def test_what_is_being_accepted_is_cancelled_by_its_owner_and_attempt_only(hosting, owner, attempt):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(1)
        await gate.wait()
        return []

    async with hosting(done, get_tools=get_tools) as h:
        asking = asyncio.create_task(h.init(attempt=2))
        await h.until(lambda: calls)
        assert not h.engine.cancel(owner, rollout_id="r1", attempt=attempt)[0].cancelled
        gate.set()
        record, _ = await asking
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED


# Before its Init


async def test_a_cancel_may_come_before_its_init(hosting):
    runs = []
    async with hosting(counting(runs)) as h:
        assert h.engine.cancel("me", rollout_id="r1") == [CancelResult("r1", 0)]
        record = await h.start()
        await h.settled(record)
        check_cancelled(h, record)
        assert runs == []
        assert [kind.receipt for kind in h.kinds(record, events.Delivered)] == [Receipt.RECORDED]
        assert (h.engine.capacity().running, h.engine.capacity().queued) == (0, 0)
        assert await h.init() == (record, False)


async def test_such_a_cancel_is_used_up_by_the_first_init(hosting):
    runs = []
    async with hosting(counting(runs)) as h:
        h.engine.cancel("me", rollout_id="r1")
        assert (await h.run(attempt=1)).status is OutcomeStatus.CANCELLED
        assert (await h.run(attempt=2)).status is OutcomeStatus.COMPLETED
        assert runs == [("r1", 2)]


async def test_such_a_cancel_concerns_its_id_only(hosting):
    async with hosting(done) as h:
        h.engine.cancel("me", rollout_id="r1")
        assert (await h.run("r2")).status is OutcomeStatus.COMPLETED
        assert (await h.run("r1")).status is OutcomeStatus.CANCELLED


@pytest.mark.parametrize(
    ("cancelled", "asked", "status"),
    [(2, 1, "CANCELLED"), (2, 2, "CANCELLED"), (2, 3, "COMPLETED"), (0, 7, "CANCELLED")],
)
async def test_such_a_cancel_holds_up_to_its_attempt(hosting, cancelled, asked, status):
    async with hosting(done) as h:
        h.engine.cancel("me", rollout_id="r1", attempt=cancelled)
        assert (await h.run(attempt=asked)).status == status


@pytest.mark.parametrize("attempts", [(3, 1), (0, 1), (1, 3)])
async def test_a_second_such_cancel_does_not_weaken_the_first(hosting, attempts):
    async with hosting(done) as h:
        for attempt in attempts:
            h.engine.cancel("me", rollout_id="r1", attempt=attempt)
        assert (await h.run(attempt=3)).status is OutcomeStatus.CANCELLED


async def test_a_second_such_cancel_does_not_revive_the_first(hosting):
    async with hosting(done, sweep_interval=60.0) as h:
        h.engine.cancel("me", rollout_id="r1", attempt=5)
        h.clock.ahead += 601.0
        h.engine.cancel("me", rollout_id="r1", attempt=1)
        assert (await h.run(attempt=3)).status is OutcomeStatus.COMPLETED


async def test_a_cancel_of_an_attempt_to_come_cancels_the_current_one_too(hosting):
    async with hosting(hangs) as h:
        first = await h.start(attempt=1)
        await h.running()
        assert h.engine.cancel("me", rollout_id="r1", attempt=2)[0].cancelled
        assert (await h.settled(first)).status is OutcomeStatus.CANCELLED
        assert (await h.run(attempt=2)).status is OutcomeStatus.CANCELLED


@pytest.mark.parametrize(("seconds", "status"), [(599.0, "CANCELLED"), (601.0, "COMPLETED")])
@pytest.mark.parametrize("sweep_interval", [0.01, 60.0])
async def test_such_a_cancel_waits_ten_minutes(hosting, seconds, status, sweep_interval):
    async with hosting(done, sweep_interval=sweep_interval) as h:
        h.engine.cancel("me", rollout_id="r1")
        h.clock.ahead += seconds
        await asyncio.sleep(0.03)  # more than one sweep
        assert (await h.run()).status == status


async def test_such_a_cancel_survives_an_init_that_is_refused(hosting):
    answers = [["junk"]]
    async with hosting(done, get_tools=lambda request: answers.pop() if answers else []) as h:
        h.engine.cancel("me", rollout_id="r1")
        with pytest.raises(Exception, match="get_tools"):
            await h.init()
        assert (await h.run()).status is OutcomeStatus.CANCELLED


async def test_a_cancel_while_an_init_is_being_refused_waits_for_the_next(hosting):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(1)
        if len(calls) == 1:
            await gate.wait()
            raise ValueError("no")
        return []

    async with hosting(done, get_tools=get_tools) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: calls)
        assert h.engine.cancel("me", rollout_id="r1")[0].cancelled
        gate.set()
        with pytest.raises(Internal):
            await asking
        assert (await h.run()).status is OutcomeStatus.CANCELLED


# Whose


async def test_another_owner_learns_nothing_and_changes_nothing(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run) as h:
        record = await h.start()
        assert h.engine.cancel("another", rollout_id="r1") == h.engine.cancel("another", rollout_id="r1", attempt=1)
        assert h.engine.cancel("another", rollout_id="r1") == [CancelResult("r1", 0)]
        assert h.engine.cancel("another") == []
        release.set()
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        assert h.kinds(record, events.CancelAsked) == []


async def test_an_early_cancel_concerns_its_owner_only(hosting):
    async with hosting(done) as h:
        h.engine.cancel("another", rollout_id="r1")
        assert (await h.run(owner="me")).status is OutcomeStatus.COMPLETED


async def test_a_lower_attempt_is_history(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run) as h:
        first = await h.start(attempt=1)
        record = await h.start(attempt=3)
        await h.settled(first)
        assert h.engine.cancel("me", rollout_id="r1", attempt=1) == [
            CancelResult("r1", 1, "ALREADY_ENDED", RolloutState.CANCELLED)
        ]
        assert h.engine.cancel("me", rollout_id="r1", attempt=2) == [CancelResult("r1", 2)]
        release.set()
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED


# Several


async def test_a_group(hosting):
    async with hosting(hangs) as h:
        records = {
            name: await h.start(name, owner=owner, group=group)
            for name, owner, group in [
                ("a", "me", Group("g1", 0, 2)),
                ("b", "me", Group("g1", 1, 2)),
                ("c", "me", Group("g2")),
                ("d", "me", None),
                ("e", "another", Group("g1")),
            ]
        }
        await h.running(5)
        rows = h.engine.cancel("me", group_id="g1", reason="group")
        assert [(row.rollout_id, row.cancelled) for row in rows] == [("a", True), ("b", True)]
        for name in "ab":
            await h.settled(records[name])
            check_cancelled(h, records[name], "group")
        assert [records[name].state for name in "cde"] == [RolloutState.RUNNING] * 3
        assert h.engine.cancel("me", group_id="g1") == []
        assert h.engine.cancel("me", group_id="unknown") == []


async def test_all_of_ones_own(hosting):
    async with hosting(hangs, max_concurrent=2) as h:
        theirs = await h.start("theirs", owner="another")
        mine = [await h.start(f"r{n}") for n in range(4)]
        await h.running(2)
        rows = h.engine.cancel("me", reason="all")
        assert [(row.rollout_id, row.cancelled) for row in rows] == [(f"r{n}", True) for n in range(4)]
        for record in mine:
            await h.settled(record)
            check_cancelled(h, record, "all")
        assert theirs.state is RolloutState.RUNNING
        assert h.engine.cancel("me") == []


# Races


async def test_a_cancel_in_the_agents_last_step_wins_once(hosting):
    async def run(ctx):
        host[0].engine.cancel("me", rollout_id="r1")
        return ctx.complete([USER], reward=1.0)

    host = []
    async with hosting(run) as h:
        host.append(h)
        record = await h.start()
        await h.settled(record)
        check_cancelled(h, record)


async def test_a_cancel_between_the_result_and_its_commit_has_one_end(hosting):
    async def run(ctx):
        asyncio.get_running_loop().call_soon(lambda: h.engine.cancel("me", rollout_id="r1"))
        return ctx.complete([USER], reward=1.0)

    async with hosting(run) as h:
        record = await h.start()
        await h.settled(record)
        h.check_whole(record)
        assert (record.delivery.outcome.reward is None) == (record.delivery.outcome.status is OutcomeStatus.CANCELLED)


async def test_result_cancel_and_deadline_at_once_have_one_end(hosting):
    chance = random.Random(20)

    async def run(ctx):
        await asyncio.sleep(float(ctx.request.label))  # as long as the label says
        return ctx.complete([USER], reward=1.0)

    async with hosting(run, max_concurrent=200, max_queued=200) as h:
        loop, records = asyncio.get_running_loop(), []
        for n in range(300):
            what, moment = n % 3, chance.uniform(0.0, 0.02)
            timeout = None if what == 0 else max(0.001, moment + chance.uniform(-0.002, 0.002))
            record = await h.start(f"r{n}", label=f"{moment}", agent_timeout=timeout)
            if what != 1:
                later = moment + chance.uniform(-0.002, 0.002)
                loop.call_later(max(0.0, later), lambda name=f"r{n}": h.engine.cancel("me", rollout_id=name))
            records.append(record)
        for record in records:
            outcome = await h.settled(record)
            h.check_whole(record)
            asked = len(h.kinds(record, events.CancelAsked))
            assert asked == (1 if outcome.status is OutcomeStatus.CANCELLED else 0)
            assert outcome.reward == (1.0 if outcome.status is OutcomeStatus.COMPLETED else None)
            assert outcome.status is not OutcomeStatus.FAILED
            assert record.state == outcome.status
        await h.until(lambda: h.engine.capacity().running == h.engine.capacity().queued == 0)
        assert len(h.trainer.outcomes) == 300
        assert len({record.delivery.outcome.status for record in records}) > 1
