"""A cancel that was answered is remembered, whenever the process is killed after it."""

import asyncio
from collections import Counter

import pytest

from osmosis_grpc.protocol.errors import ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import CancelResult, OutcomeStatus, RolloutState
from tests.engine.test_journal import Talker, Until, keeping
from tests.storage.disk import Disk


class Slow(Talker):
    """Has a slow get_tools."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()
        self.asked = 0

    async def get_tools(self, request):
        self.asked += 1
        await self.go.wait()
        return []


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.go()


async def check_cancelled(folder, *, known):
    """What the next process makes of it: the rollout ends CANCELLED without having run."""
    agent = Talker()
    async with keeping(folder, agent) as h:
        if not known:
            await h.start()
        info = await h.get()
        assert (info.outcome.status, agent.runs) == (OutcomeStatus.CANCELLED, 0)
        assert h.names().count("CancelAsked") == 1


async def test_it_is_not_answered_before_its_commit(folder, disk):
    async with keeping(folder, Talker()) as h:
        disk.hold()
        assert h.engine.cancel("me", rollout_id="r1") == [CancelResult("r1")]
        answered = asyncio.create_task(h.engine.log.flush())
        await h.until(lambda: disk.held)
        before = h.crash()
        assert not answered.done()
        disk.go()
        await answered
        after = h.crash()
    agent = Talker(1)
    async with keeping(before, agent) as h:
        assert (await h.run()).status is OutcomeStatus.COMPLETED
    await check_cancelled(after, known=False)


async def test_nothing_is_waited_for_where_nothing_is_written(folder, hosting):
    async with keeping(folder, Talker()) as h:
        await h.engine.log.flush()
        await h.engine.log.flush()
    async with hosting(Talker()) as h:
        received = []
        h.engine.cancel("me", rollout_id="r1")
        h.engine.log.barrier(received.append)
        assert received == [None]


async def test_of_a_running_rollout(folder):
    async with keeping(folder, Talker(), policy=Until(2)) as h:
        await h.start()
        await h.until(lambda: len(h.trainer.chats) == 2)
        assert h.engine.cancel("me", rollout_id="r1", reason="enough")[0].cancelled
        await h.engine.log.flush()
        copy = h.crash()
    await check_cancelled(copy, known=True)


async def test_of_a_rollout_that_is_being_accepted(folder):
    slow = Slow()
    async with keeping(folder, slow) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: slow.asked)
        assert h.engine.cancel("me", rollout_id="r1") == [CancelResult("r1", 1, "CANCELLED", RolloutState.ACCEPTED)]
        await h.engine.log.flush()
        copy = h.crash()
        slow.go.set()
        record, _ = await asking
        assert (await h.settled(record)).status is OutcomeStatus.CANCELLED
        assert h.engine.journal.tombstones() == []
    await check_cancelled(copy, known=False)


async def test_of_one_that_is_killed_between_its_acceptance_and_its_end(folder, monkeypatch):
    """Its Init is committed, and that a cancel came before it is not written again yet."""
    copies = []
    async with keeping(folder, Talker()) as h:
        cancel = h.engine.runner.cancel

        def copying(record, reason):
            copies.append(h.crash())
            cancel(record, reason)

        monkeypatch.setattr(h.engine.runner, "cancel", copying)
        h.engine.cancel("me", rollout_id="r1")
        await h.run()
    assert len(copies) == 1
    await check_cancelled(copies[0], known=True)


async def test_of_one_that_is_accepted_while_the_engine_closes(folder, disk):
    agent = Talker()
    async with keeping(folder, agent) as h:
        disk.hold()
        asking = asyncio.create_task(h.init())
        await h.until(lambda: disk.held)
        h.engine.cancel("me", rollout_id="r1")
        closing = asyncio.create_task(h.engine.shutdown.close(0.0))
        await h.until(lambda: h.engine.shutdown.closing)
        disk.go()
        record, _ = await asking
        await closing
        assert (await h.settled(record)).status is OutcomeStatus.CANCELLED
    assert agent.runs == 0


async def test_a_disk_that_fails_is_told(folder, disk):
    async with keeping(folder, Talker()) as h:
        disk.failing = True
        h.engine.cancel("me", rollout_id="r1")
        with pytest.raises(Unavailable, match="the journal cannot be written: the disk is full") as refused:
            await h.engine.log.flush()
        assert refused.value.retry_after
        disk.failing = False
        await h.until(lambda: not h.engine.journal.problem)
        h.engine.cancel("me", rollout_id="r1")
        await h.engine.log.flush()
        copy = h.crash()
        assert (await h.run()).status is OutcomeStatus.CANCELLED  # also in this process
    await check_cancelled(copy, known=False)


@pytest.mark.parametrize("delivered", [True, False])
async def test_of_a_rollout_whose_events_can_be_written_no_more(folder, disk, delivered):
    """A delivered one is deleted. The next process answers another Init of it, too."""
    async with keeping(folder, Talker(), policy=Until(2)) as h:
        disk.failing = True
        with pytest.raises(Unavailable):
            await h.init("refused")
        disk.failing = False
        await h.until(lambda: not h.engine.journal.problem)
        record = await h.start()
        await h.until(lambda: len(h.trainer.chats) == 2 and record.trail.last_event_number == record.trail.written)
        disk.failing = True
        record.run.session.add_sample("lost")
        await h.until(lambda: not record.trail.journaled)
        disk.failing = False
        await h.until(lambda: not h.engine.journal.problem)
        if not delivered:
            h.trainer.answers = [Unavailable("away")] * 1000
        assert h.engine.cancel("me", rollout_id="r1")[0].cancelled
        if delivered:
            await h.until(lambda: record.delivery.settled)
        await h.engine.log.flush()
        copy = h.crash()
    await check_cancelled(copy, known=not delivered)


# How many


async def test_one_owners_are_bounded(hosting):
    async with hosting(Talker(1), max_tombstones=3) as h:
        for name in ("a", "b", "c", "a"):
            h.engine.cancel("me", rollout_id=name)
        with pytest.raises(ResourceExhausted, match="3 cancels wait for their Inits") as refused:
            h.engine.cancel("me", rollout_id="d")
        assert refused.value.retry_after
        assert h.engine.cancel("another", rollout_id="d") == [CancelResult("d")]
        ends = Counter([(await h.run(name)).status for name in ("a", "b", "c", "d")])
        assert ends == {OutcomeStatus.CANCELLED: 3, OutcomeStatus.COMPLETED: 1}
        h.engine.cancel("me", rollout_id="e")  # those three are used up


async def test_their_room_comes_back_with_time(hosting):
    async with hosting(Talker(1), max_tombstones=1) as h:
        h.engine.cancel("me", rollout_id="a")
        h.clock.ahead += 601.0
        await h.until(lambda: not len(h.engine.context.tombstones))
        h.engine.cancel("me", rollout_id="b")


async def test_beyond_that_what_runs_is_cancelled_all_the_same(hosting):
    class Picky(Slow):
        async def get_tools(self, request):
            return await super().get_tools(request) if request.rollout_id == "slow" else []

        async def run(self, ctx):
            await asyncio.Event().wait()

    picky = Picky()
    async with hosting(picky, max_tombstones=1) as h:
        h.engine.cancel("me", rollout_id="unknown")
        asking = asyncio.create_task(h.init("slow"))
        await h.until(lambda: picky.asked)
        record = await h.start("running")
        with pytest.raises(ResourceExhausted):
            h.engine.cancel("me")
        assert (await h.settled(record)).status is OutcomeStatus.CANCELLED
        picky.go.set()
        record, _ = await asking
        assert h.engine.cancel("me", rollout_id="slow")[0].cancelled
        assert (await h.settled(record)).status is OutcomeStatus.CANCELLED


async def test_the_next_process_counts_them_too(folder):
    async with keeping(folder, Talker()) as h:
        h.engine.cancel("me", rollout_id="a")
        h.engine.cancel("me", rollout_id="b")
    async with keeping(folder, Talker(), max_tombstones=2) as h:
        with pytest.raises(ResourceExhausted):
            h.engine.cancel("me", rollout_id="c")
        assert (await h.run("a")).status is OutcomeStatus.CANCELLED
        h.engine.cancel("me", rollout_id="c")
