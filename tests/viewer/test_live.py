"""Pages that follow: the dearer their looks, and the more of them, the rarer they look. Equal pages share a feed."""

import asyncio
from contextlib import aclosing

import pytest

from osmosis_grpc.protocol.types import Activity, RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.source_port import Source, SourceError
from osmosis_grpc.viewer import live
from osmosis_grpc.viewer.live import Feed, Feeds
from osmosis_grpc.viewer.reads import Reads
from tests.waiting import until

SHARE = 0.02


class Shown:
    """What a page shows: the number `found`. A look costs `cost` seconds."""

    def __init__(self, cost=0.0):
        self.found, self.cost = 1, cost
        self.problem = ""
        self.looks = self.renders = 0

    @property
    def feed(self):
        return Feed(self._look, lambda found: found, self._render, lambda found: found == "last")

    async def _look(self):
        self.looks += 1
        with live.spending(iter((100.0, 100.0 + self.cost)).__next__):
            if self.problem:
                raise SourceError(self.problem)
            return self.found

    def _render(self, found):
        self.renders += 1
        return [("rows", f"{found}")]


def opened(feeds, name, shown):
    """The events of an open page, each with the data of all its lines."""
    return aclosing(feeds.stream(name, shown.feed).body_iterator)


@pytest.fixture
def pauses(monkeypatch):
    """Pages look without pauses. The cost, the pages and the share of each pause."""
    found = []

    def pause(cost, pages, share, *, calm):
        found.append((round(cost, 1), pages, share))
        return 0.0

    monkeypatch.setattr(live, "pause", pause)
    return found


@pytest.fixture
def feeds():
    return Feeds(SHARE, asyncio.Event())


@pytest.mark.parametrize(
    ("cost", "pages", "seconds"),
    [(0.0, 1, 1.0), (0.01, 1, 1.0), (0.1, 1, 5.0), (0.1, 4, 20.0), (0.01, 4, 2.0), (3.0, 1, 150.0)],
)
def test_all_looks_take_at_most_the_share_of_the_time(cost, pages, seconds):
    found = live.pause(cost, pages, SHARE)
    assert found == pytest.approx(seconds)
    assert pages * cost / found <= SHARE + 1e-9
    assert live.pause(cost, pages, SHARE, calm=True) == max(found, live.CALM)


async def test_the_cost_of_a_block_has_inner_blocks_and_work_on_other_threads():
    with live.counted() as outer:
        with live.counted() as inner, live.spending(iter((5.0, 7.0)).__next__):
            pass
        assert (inner.seconds, outer.seconds) == (2.0, 2.0)
        assert await live.aside(lambda: sum(range(100_000))) == 4_999_950_000
    assert outer.seconds > inner.seconds == 2.0


async def test_the_pause_has_the_cost_of_the_last_look_and_the_number_of_different_pages(feeds, pauses):
    table, curves = Shown(3.0), Shown()
    async with opened(feeds, "table", table) as first, opened(feeds, "curves", curves) as second:
        await anext(first)
        await anext(second)
        table.found = 2
        await anext(first)
        assert pauses == [(0.0, 2, SHARE), (0.0, 2, SHARE), (3.0, 2, SHARE)]


async def test_equal_pages_share_looks_and_renderings_and_a_closed_page_looks_no_more(feeds, pauses):
    shown = Shown()
    async with opened(feeds, "table", shown) as first, opened(feeds, "table", shown) as second:
        found = await asyncio.gather(anext(first), anext(second))
        assert found[0] == found[1]
        assert b"data: 1" in found[0]
        assert (shown.looks, shown.renders) == (1, 1)
        shown.found = 2
        found = await asyncio.gather(anext(first), anext(second))
        assert found[0] == found[1]
        assert b"data: 2" in found[0]
        assert (shown.looks, shown.renders) == (2, 2)
    assert {pages for _, pages, _ in pauses} == {1}
    looks = shown.looks
    for _ in range(100):
        await asyncio.sleep(0)
    assert shown.looks == looks


async def test_what_has_not_changed_is_not_rendered_again(feeds, pauses):
    shown = Shown()
    async with opened(feeds, "table", shown) as page:
        await anext(page)
        waiting = asyncio.ensure_future(anext(page))
        while shown.looks < 5:
            await asyncio.sleep(0)
        assert (shown.renders, waiting.done()) == (1, False)
        shown.found = 2
        assert b"data: 2" in await waiting
        assert shown.renders == 2


async def test_a_problem_is_sent_once_and_the_page_is_sent_again_after_it(feeds, pauses):
    shown = Shown()
    async with opened(feeds, "table", shown) as page:
        await anext(page)
        shown.problem = "the server does not answer"
        assert b"event: problem\r\ndata: the server does not answer" in await anext(page)
        waiting = asyncio.ensure_future(anext(page))
        looks = shown.looks
        while shown.looks < looks + 3:
            await asyncio.sleep(0)
        assert not waiting.done()
        shown.problem = ""
        assert b"event: rows\r\ndata: 1" in await waiting


async def test_a_page_ends_with_the_last_state_and_with_the_viewer(pauses):
    stopping = asyncio.Event()
    feeds = Feeds(SHARE, stopping)
    shown = Shown()
    shown.found = "last"
    async with opened(feeds, "table", shown) as page:
        assert [b"event: ended" in events async for events in page] == [False, True]
    async with opened(feeds, "curves", Shown()) as page:
        await anext(page)
        stopping.set()
        assert [events async for events in page] == []


class Counted(Source):
    """Rollouts without events. The read of `slow` waits until `go` is set."""

    where = "a test"

    def __init__(self):
        self.go = asyncio.Event()
        self.reads = []

    async def page(self, where, token="", *, limit=100, newest_first=False):
        return [], ""

    async def get(self, rollout_id, attempt=0):
        self.reads.append(rollout_id)
        if rollout_id == "slow":
            await self.go.wait()
        return info_of(rollout_id)

    async def events(self, rollout_id, attempt=0, *, after=0, follow=False):
        for event in ():
            yield event

    async def all_events(self):
        for event in ():
            yield event


def info_of(rollout_id):
    """A rollout that runs."""
    activity = Activity("agent", 1.0)
    return RolloutInfo(
        rollout_id=rollout_id, attempt=1, agent_loop="a", state=RolloutState.RUNNING, activity=activity, accept_time=1.0
    )


async def test_the_read_of_a_rollout_does_not_wait_for_the_read_of_another_one():
    source = Counted()
    reads = Reads(source)
    async with asyncio.TaskGroup() as pages:
        slow = [pages.create_task(reads.rollout("slow")) for _ in range(3)]
        await until(lambda: source.reads == ["slow"])
        assert (await reads.rollout("quick")).info.rollout_id == "quick"
        assert (await reads.listed(ListOptions())).rows == ()
        source.go.set()
    assert {page.result().info.rollout_id for page in slow} == {"slow"}
    assert source.reads == ["slow", "quick"]
