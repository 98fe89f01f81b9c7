"""The reads of the viewer: a slow one does not keep others waiting, and pages that show the same share one."""

import asyncio

from osmosis_grpc.protocol.types import Activity, RolloutInfo, RolloutState
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.viewer.reads import Reads
from tests.waiting import until


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
