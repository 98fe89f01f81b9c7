"""Delivery: at least once, until it is settled; and how an engine closes."""

import asyncio
import contextlib
import threading

import pytest

from osmosis_grpc.protocol.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import Callback, OutcomeStatus, Receipt, RolloutFilter, RolloutState, events
from tests.waiting import turns

USER = {"role": "user", "content": "hello"}


async def done(ctx):
    return ctx.complete([USER], reward=1.0)


async def hangs(ctx):
    await asyncio.Event().wait()


def delivered(h, record):
    return h.kinds(record, events.Delivered)


async def test_a_completion_is_delivered_once(hosting):
    async with hosting(done) as h:
        record = await h.start()
        outcome = await h.settled(record)
        assert delivered(h, record) == [events.Delivered(Receipt.RECORDED, "", 1)]
        assert h.trainer.outcomes == [outcome]
        assert (record.delivery.undelivered, h.engine.capacity().undelivered) == (False, 0)


async def test_every_result_has_an_id_of_its_own(hosting):
    async with hosting(done) as h:
        ids = {(await h.run(f"r{n}")).result_id for n in range(20)}
        assert len(ids) == 20
        assert "" not in ids


TRANSIENT = [
    Unavailable("away"),
    ResourceExhausted("full"),
    DeadlineExceeded("slow"),
    Internal("broken"),
    NotFound("who?"),
    Cancelled("given up"),
    RuntimeError("a bug"),
    OSError("no route"),
    TimeoutError(),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
async def test_it_is_tried_again_with_the_same_result(hosting, error):
    async with hosting(done) as h:
        h.trainer.answers = [error] * 3
        record = await h.start()
        outcome = await h.settled(record)
        assert h.trainer.results("r1") == [outcome.result_id] * 4
        assert delivered(h, record) == [events.Delivered(Receipt.RECORDED, "", 4)]
        assert outcome.status is OutcomeStatus.COMPLETED
        assert outcome.reward == 1.0


async def test_a_sink_that_is_cancelled_does_not_take_the_engine_along(hosting):
    async with hosting(done) as h:
        h.trainer.answers = [asyncio.CancelledError()]
        record = await h.start()
        await h.settled(record)
        assert delivered(h, record) == [events.Delivered(Receipt.RECORDED, "", 2)]
        assert (await h.run("next")).status is OutcomeStatus.COMPLETED


@pytest.mark.parametrize("answer", [Receipt.ALREADY_RECORDED, Receipt.CONFLICT])
async def test_every_outcome_settles(hosting, answer):
    async with hosting(done) as h:
        h.trainer.answers = [answer]
        record = await h.start()
        await h.settled(record)
        assert delivered(h, record) == [events.Delivered(answer, "", 1)]
        await asyncio.sleep(0.06)  # time for what must not come
        assert len(h.trainer.outcomes) == 1
        assert h.engine.capacity().undelivered == 0
        assert h.engine.outbox.expired == 0


@pytest.mark.parametrize(
    "error",
    [InvalidArgument("messages", "are not mine"), Aborted("attempt 2 stands"), Unimplemented("no Complete")],
    ids=lambda error: type(error).__name__,
)
async def test_a_final_refusal_settles(hosting, error):
    async with hosting(done) as h:
        h.trainer.answers = [Unavailable("away"), error]
        record = await h.start()
        await h.settled(record)
        assert delivered(h, record) == [events.Delivered(None, f"refused: {error}", 2)]
        await asyncio.sleep(0.06)  # time for what must not come
        assert len(h.trainer.outcomes) == 2
        assert (record.delivery.undelivered, h.engine.capacity().undelivered) == (False, 0)
        assert record.state is RolloutState.COMPLETED


async def test_it_expires_with_its_record(hosting):
    async with hosting(done, record_ttl=10_000.0) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        record = await h.start()
        await h.until(lambda: len(h.trainer.outcomes) > 2)
        h.clock.ahead += 9_000.0
        before = len(h.trainer.outcomes)
        await h.until(lambda: len(h.trainer.outcomes) > before + 1)
        assert (record.delivery.undelivered, h.engine.outbox.expired) == (True, 0)
        h.clock.ahead += 2_000.0
        await h.until(lambda: not record.delivery.undelivered)
        tries = len(h.trainer.outcomes)
        assert (record.delivery.undelivered, h.engine.capacity().expired) == (False, 1)
        assert h.engine.capacity().undelivered == 0
        await h.until_listed()
        assert len(h.trainer.outcomes) == tries


async def test_until_then_it_is_kept(hosting):
    async with hosting(done, record_ttl=100.0, outbox_delay=(60.0, 60.0)) as h:
        h.trainer.answers = [Unavailable("away")]
        record = await h.start()
        await h.until(lambda: h.trainer.outcomes)
        await turns()  # the pause before the next try has begun
        h.clock.ahead += 1000.0
        await asyncio.sleep(0.06)  # time for what must not come
        assert h.engine.rollouts.get("me", "r1") is record
        assert record.delivery.undelivered


async def test_its_expiry_is_recorded(hosting):
    seen = []
    async with hosting(done, record_ttl=0.05, sinks=[seen.append]) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        await h.start()
        await h.until(lambda: seen and type(seen[-1].kind) is events.Delivered)
        kind = seen[-1].kind
        assert (kind.receipt, kind.given_up) == (None, "expired")
        assert kind.tries - len(h.trainer.outcomes) in (0, 1)  # the last may be given up before it begins


async def test_it_waits_as_long_as_it_is_told(hosting):
    async with hosting(done, outbox_delay=(0.001, 60.0)) as h:
        h.trainer.answers = [Unavailable("paused", retry_after=30.0)]
        record = await h.start()
        await h.until(lambda: h.trainer.outcomes)
        await asyncio.sleep(0.1)  # time for what must not come
        assert len(h.trainer.outcomes) == 1
        assert record.delivery.undelivered


async def test_it_waits_no_longer_than_it_is_told(hosting):
    async with hosting(done, outbox_delay=(60.0, 60.0)) as h:
        h.trainer.answers = [Unavailable("paused", retry_after=0.001)] * 3
        record = await h.start()
        await h.settled(record)
        assert delivered(h, record) == [events.Delivered(Receipt.RECORDED, "", 4)]


async def test_it_never_waits_longer_than_the_longest_pause(hosting):
    async with hosting(done, outbox_delay=(0.01, 0.02)) as h:
        h.trainer.answers = [Unavailable("paused", retry_after=1000.0)]
        record = await h.start()
        await h.settled(record)
        assert delivered(h, record)[0].tries == 2


async def test_while_it_is_undelivered_it_is_told(hosting):
    async with hosting(done) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        record = await h.start()
        await h.until(lambda: h.trainer.outcomes)
        other = h.Trainer()
        await h.settled(await h.start("r2", trainer=other))
        info = await h.engine.rollouts.info(record)
        assert (info.state, info.undelivered, info.activity.description) == (RolloutState.COMPLETED, True, "delivering")
        assert info.outcome.reward == 1.0
        assert [
            row.rollout_id for row in (await h.engine.rollouts.page("me", where=RolloutFilter(undelivered=True)))[0]
        ] == ["r1"]
        assert h.engine.capacity().undelivered == 1
        assert h.engine.capacity().completed == 2
        h.trainer.answers = []
        await h.settled(record)
        info = record.info()
        assert (info.undelivered, info.activity.description, info.outcome) == (False, "ended", None)
        assert (await h.engine.rollouts.page("me", where=RolloutFilter(undelivered=True))) == ([], 0)


# To another place


async def test_delivery_goes_to_where_an_equal_init_came_from(hosting):
    async with hosting(done, outbox_delay=(60.0, 60.0)) as h:
        old, new = h.Trainer(key="old"), h.Trainer(key="new")
        old.answers = [Unavailable("away")]
        record = await h.start(trainer=old)
        await h.until(lambda: old.outcomes)
        assert await h.init(trainer=new, callback=Callback(target="new:1")) == (record, False)
        outcome = await h.settled(record)
        assert (old.results("r1"), new.results("r1")) == ([outcome.result_id], [outcome.result_id])
        assert delivered(h, record) == [events.Delivered(Receipt.RECORDED, "", 2)]


async def test_delivery_leaves_a_place_that_does_not_answer(hosting):
    async with hosting(done) as h:
        asked = asyncio.Event()

        async def silent(outcome):
            asked.set()
            await asyncio.Event().wait()

        old, new = h.Trainer(key="old"), h.Trainer(key="new")
        old.peer = type(old.peer)(old.chat, silent, "old")
        record = await h.start(trainer=old)
        await asked.wait()
        await h.init(trainer=new)
        outcome = await h.settled(record)
        assert new.results("r1") == [outcome.result_id]


async def test_the_new_place_is_given_its_time(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run, outbox_delay=(60.0, 60.0)) as h:
        new = h.Trainer(key="new")
        new.answers = [Unavailable("away")] * 1000
        record = await h.start()
        await h.init(trainer=new)
        release.set()
        await h.until(lambda: new.outcomes)
        await asyncio.sleep(0.1)  # time for what must not come
        assert len(new.outcomes) == 1
        assert record.delivery.undelivered


async def test_a_settled_one_is_not_delivered_again(hosting):
    async with hosting(done) as h:
        record = await h.start()
        await h.settled(record)
        new = h.Trainer(key="new")
        assert await h.init(trainer=new) == (record, False)
        await asyncio.sleep(0.06)  # time for what must not come
        assert new.outcomes == []
        h.check_whole(record)


# Drain and close


async def test_drained_waits_for_what_runs_and_for_what_is_undelivered(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run, max_concurrent=1) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        records = [await h.start(f"r{n}") for n in range(3)]
        assert await h.engine.shutdown.drained(0.03) is False
        release.set()
        await h.until(lambda: all(record.delivery.undelivered for record in records))
        assert await h.engine.shutdown.drained(0.03) is False
        waiting = asyncio.ensure_future(h.engine.shutdown.drained(30.0))
        await asyncio.sleep(0.02)  # time for what must not come
        assert not waiting.done()
        h.trainer.answers = []
        async with asyncio.timeout(3):
            assert await waiting is True
        assert h.engine.capacity().undelivered == 0
        assert {c.rollout_id for c in h.trainer.outcomes} == {"r0", "r1", "r2"}


async def test_an_empty_engine_is_drained(hosting):
    async with hosting(done) as h:
        assert await h.engine.shutdown.drained(0.0) is True
        await h.run()
        assert await h.engine.shutdown.drained(0.0) is True


async def test_drained_notices_that_an_init_was_refused(hosting):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(1)
        await gate.wait()
        raise ValueError("no")

    async with hosting(done, get_tools=get_tools) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: calls)
        h.engine.shutdown.drain()
        waiting = asyncio.ensure_future(h.engine.shutdown.drained(1.0))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(Internal):
            await asking
        assert await waiting is True


async def test_closing_ends_what_lives_and_delivers_it(hosting):
    async with hosting(hangs, max_concurrent=2) as h:
        ended = await h.start("r0", agent_timeout=0.02)
        await h.settled(ended)
        records = [await h.start(f"r{n}") for n in range(1, 5)]
        await h.running(2)
        await h.engine.shutdown.close(3.0)
        for record in records:
            outcome = record.delivery.outcome
            assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.FAILED, "shutdown")
            assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)
            assert outcome.reward is None
            h.check_whole(record)
        assert ended.delivery.outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
        with pytest.raises(Unavailable):
            await h.init("late")


async def test_closing_does_not_wait_for_an_agent_that_does_not_stop(hosting):
    async def stubborn(ctx):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    release = asyncio.Event()
    async with hosting(stubborn) as h:
        record = await h.start()
        await h.running()
        await h.engine.shutdown.close(3.0)
        assert record.delivery.outcome.failure.boundary == "server"
        h.check_whole(record)
        release.set()
        await h.until(lambda: h.engine.capacity().abandoned == 0)


async def test_closing_gives_up_after_its_limit(hosting):
    async with hosting(done) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        record = await h.start()
        await h.until(lambda: h.trainer.outcomes)
        await h.engine.shutdown.close(0.03)
        assert record.delivery.undelivered
        assert delivered(h, record) == []


@pytest.mark.parametrize("waits", [False, True], ids=["stops at once", "takes a while to stop"])
async def test_leaving_the_engine_ends_what_runs(hosting, waits):
    async def run(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            if waits:
                await asyncio.sleep(0.05)  # it stops late

    before = asyncio.all_tasks()
    async with hosting(run, max_concurrent=1) as h:
        running, queued = await h.start("running"), await h.start("queued")
        await h.running()
    await h.until(lambda: asyncio.all_tasks() == before)
    for record in (running, queued):
        assert record.state is RolloutState.FAILED
        assert (record.delivery.outcome.failure.boundary, record.delivery.outcome.failure.retryable) == ("server", True)
    assert h.escaped == []


async def test_leaving_the_engine_may_be_interrupted(hosting):
    async def run(ctx):
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await release.wait()

    async def host():
        async with hosting(run, stop_again_after=(60.0,)) as h:
            await h.start()
            await h.running()

    stopping, release = asyncio.Event(), asyncio.Event()
    before, threads = asyncio.all_tasks(), threading.active_count()
    leaving = asyncio.create_task(host())
    await stopping.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    release.set()
    await asyncio.sleep(0.02)  # time for what must not come
    assert asyncio.all_tasks() == before
    assert threading.active_count() == threads


async def test_leaving_the_engine_refuses_what_was_not_accepted_yet(hosting):
    async def get_tools(request):
        calls.append(1)
        await asyncio.Event().wait()

    calls = []
    before = asyncio.all_tasks()
    async with hosting(done, get_tools=get_tools) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: calls)
    with pytest.raises(Unavailable):
        await asking
    await h.until(lambda: asyncio.all_tasks() == before)


async def test_leaving_the_engine_stops_deliveries(hosting):
    before = asyncio.all_tasks()
    async with hosting(done) as h:
        h.trainer.answers = [Unavailable("away")] * 100_000
        record = await h.start()
        await h.until(lambda: h.trainer.outcomes)
    assert asyncio.all_tasks() == before
    assert record.delivery.undelivered
