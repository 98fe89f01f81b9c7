"""The folder of a server with several workers is read as one: its rollouts, their events, annotations and copies."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import Annotation, RolloutFilter, RolloutState, events
from osmosis_grpc.records.query import QueryDatabase, QueryError
from osmosis_grpc.records.reading.annotator import open_annotator
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.list_filter import FilterError
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.storage.backup import copied_schemas, copy_workers, new_folder
from osmosis_grpc.storage.find_damage import examine
from osmosis_grpc.storage.state_folders import worker_folders
from tests.callback_trainer import CallbackTrainer
from tests.server.workers.cluster import workers
from tests.server.workers.test_routing import IDS, QUESTION, Waiter
from tests.waiting import until

DONE = IDS[:8]


@pytest.fixture
async def folder(tmp_path):
    """The state folder of three workers that run: eight rollouts have ended, and four are running."""
    state = tmp_path / "state"
    agent = Waiter()
    async with AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(CallbackTrainer(EchoPolicy()))
        cluster = await stack.enter_async_context(workers([agent], state=state))
        client = await stack.enter_async_context(cluster.client(0))
        agent.go.set()
        for name in DONE:
            await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
            await trainer.outcome(name, timeout=20)
        agent.go.clear()
        for name in IDS[8:]:
            await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
        await until(lambda: sum(server.engine.capacity().running for server in cluster.servers) == 4)
        await until(lambda: sum(server.engine.capacity().undelivered for server in cluster.servers) == 0)
        yield state, agent, cluster, client
    assert [*worker_folders(state)] == [1, 2]


async def test_lists_are_in_the_order_of_acceptance(folder):
    state, _, _, _ = folder
    source = FolderSource(state)
    for newest_first, order in ((False, IDS), (True, IDS[::-1])):
        found, token = [], ""
        while len(found) < len(IDS):
            rows, token = await source.page(RolloutFilter(), token, limit=5, newest_first=newest_first)
            found += [row.rollout_id for row in rows]
        assert (found, token) == (order, "")
        heads, more = await source.headers(RolloutFilter(), limit=7, newest_first=newest_first)
        assert ([row.rollout_id for row in heads], more) == (order[:7], True)

    async def running():
        rows, _ = await source.page(RolloutFilter(states=(RolloutState.RUNNING,)))
        return [row.rollout_id for row in rows] == IDS[8:]

    await until(running)  # the start of the last one is committed a little later
    with pytest.raises(FilterError, match="page of this list"):
        await source.page(RolloutFilter(), "0=1/x")


async def test_each_rollout_is_found_with_its_events(folder):
    state, agent, _, _ = folder
    source = FolderSource(state)
    assert await source.as_of() is None
    for name in IDS:
        assert (await source.get(name)).rollout_id == name
        assert (await source.request(name, 1))[0].messages == QUESTION
        async with aclosing(source.events(name)) as trail:
            assert isinstance((await anext(trail)).kind, events.Accepted)
    with pytest.raises(SourceError, match=r"there is no rollout r111 in .*; similar ids: r11"):
        await source.get("r111")
    new = source.all_events()
    first = asyncio.ensure_future(anext(new))
    follow = source.events(IDS[9], follow=True)
    await anext(follow)
    agent.go.set()
    assert (await asyncio.wait_for(first, 20)).rollout_id in IDS[8:]
    async with aclosing(follow):
        kinds = [type(event.kind) async for event in follow]
    assert kinds[-1] is events.Delivered
    await new.aclose()


async def test_a_query_and_a_copy_have_all_workers(folder, tmp_path):
    state, _, _, _ = folder
    sql = "SELECT rollout_id, state, accept_time FROM rollouts ORDER BY accept_time"
    with QueryDatabase(state) as database:
        with database.select(sql, 20) as answer:
            assert [row[0] for row in answer.rows] == IDS
        with pytest.raises(QueryError), database.select("SELECT * FROM worker_1.rollouts", 20):
            pass
    with new_folder(tmp_path / "copy") as new:
        copy_workers(state, new, lambda path: lambda done, total: None)
    found = [examine(path, schema) for path, schema in copied_schemas(tmp_path / "copy")]
    assert sum(one.sound["rollouts"] for one in found) == len(IDS)
    assert [row.rollout_id for row in (await FolderSource(tmp_path / "copy").page(RolloutFilter()))[0]] == IDS


async def test_an_annotation_is_stored_where_its_rollout_is(folder, tmp_path):
    state, _, _, _ = folder
    with new_folder(tmp_path / "copy") as new:
        copy_workers(state, new, lambda path: lambda done, total: None)
    with pytest.raises(SourceError, match="in use by process"):
        async with open_annotator(FolderSource(state)):
            pass
    source = FolderSource(tmp_path / "copy")
    async with open_annotator(source) as annotator:
        for name in DONE:
            assert await annotator.annotate(name, 1, Annotation(id="a", labels=("good",)))
            assert not await annotator.annotate(name, 1, Annotation(id="a", labels=("good",)))
    for name in DONE:
        async with aclosing(source.events(name)) as trail:
            assert [event.kind.annotation.labels async for event in trail if isinstance(event.kind, events.Annotated)]
