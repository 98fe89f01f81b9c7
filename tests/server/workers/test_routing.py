"""Calls at one worker are answered as if the server were one process."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from osmosis_grpc.protocol.types import (
    Annotation,
    Fork,
    Group,
    InitRequest,
    OutcomeStatus,
    RolloutFilter,
    RolloutRequest,
    RolloutState,
    events,
)
from osmosis_grpc.protocol.wire.rollout import init_to_wire
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.server.workers import siblings
from osmosis_grpc.server.workers.routing import Workers, hashed
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.security.conftest import Files
from tests.server.workers.cluster import SECRET, workers
from tests.waiter import Waiter
from tests.waiting import ended, until

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
IDS = [f"r{number}" for number in range(12)]
LATE = RolloutRequest(rollout_id="late", messages=QUESTION)


class Replayable(RolloutAgentLoop):
    """Asks once, and waits for its gate if it has one."""

    name = "replayable"
    replayable = True
    gate = None

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        reply = await ctx.chat(ctx.request.messages)
        if self.gate is not None:
            await self.gate.wait()
        return ctx.complete([*ctx.request.messages, reply.message], reward=1.0)


@pytest.fixture
async def stack():
    async with AsyncExitStack() as made:
        yield made


@pytest.fixture
async def waiting(stack):
    """Three workers, twelve running rollouts that came through worker 0, and a client of worker 2."""
    agent = Waiter()
    cluster = await stack.enter_async_context(workers([agent]))
    trainer = await stack.enter_async_context(CallbackTrainer(EchoPolicy()))
    first, last = [await stack.enter_async_context(cluster.client(worker)) for worker in (0, 2)]
    for number, name in enumerate(IDS):
        group = Group(f"g{number % 4}", number // 4, 3)
        await first.init(rollout_id=name, messages=QUESTION, callback=trainer.callback(), group=group)
    await until(lambda: sum(server.engine.capacity().running for server in cluster.servers) == len(IDS))
    return agent, cluster, trainer, first, last


async def test_inits_are_spread_and_a_group_is_at_one_worker(waiting):
    _, cluster, _, _, _ = waiting
    places = {name: cluster.holders(name) for name in IDS}
    assert all(len(place) == 1 for place in places.values())
    for number in range(4):
        assert len({places[name][0] for name in IDS[number::4]}) == 1
    assert len({place[0] for place in places.values()}) > 1
    spread = Counter(hashed(f"rollout-{number}", 3) for number in range(300))
    assert min(spread.values()) > 60


async def test_an_equal_init_through_any_worker_finds_the_rollout(waiting):
    _, cluster, trainer, first, last = waiting
    again = {"rollout_id": "r1", "messages": QUESTION, "callback": trainer.callback(), "group": Group("g1", 0, 3)}
    for client in (first, last):
        assert not (await client.init(**again)).created
        with pytest.raises(AlreadyExists) as refused:
            await client.init(**again | {"label": "another"})
        assert refused.value.fields == ("spec.label",)
    moved = await last.init(**again | {"attempt": 2, "group": Group("another group")})
    assert moved.created
    assert len(cluster.holders("r1")) == 1


async def test_a_rollout_is_found_through_any_worker(waiting):
    agent, _, _, first, last = waiting
    for client in (first, last):
        for name in IDS:
            assert (await client.get(name)).state is RolloutState.RUNNING
        with pytest.raises(NotFound):
            await client.get("unknown")
        with pytest.raises(InvalidArgument):
            await client.get("")
    agent.go.set()
    for name in IDS:
        assert (await ended(last, name)).reward == 1.0
        assert (await last.annotate(name, Annotation(id="a", labels=("good",))))[1]
        assert not (await first.annotate(name, Annotation(id="a", labels=("good",))))[1]


async def test_a_list_has_the_rollouts_of_all_workers_in_order(waiting):
    _, _, _, first, last = waiting
    for client in (first, last):
        assert [row.rollout_id async for row in client.rollouts()] == IDS
        assert [row.rollout_id async for row in client.rollouts(newest_first=True)] == IDS[::-1]
        assert [row.rollout_id async for row in client.rollouts(group_id="g2")] == IDS[2::4]
        for newest_first, order in ((False, IDS), (True, IDS[::-1])):
            found, token = [], ""
            while len(found) < len(IDS):
                rows, token = await client.page(token=token, limit=5, newest_first=newest_first)
                assert len(rows) <= 5
                found += [row.rollout_id for row in rows]
            assert (found, token) == (order, "")
        with pytest.raises(InvalidArgument) as wrong:
            await client.page(token="0=1/x")
        assert wrong.value.violations[0][0] == "page_token"


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [({"everything": True}, IDS), ({"group_id": "g3"}, IDS[3::4]), ({"prefix": "r1"}, ["r1", "r10", "r11"])],
)
async def test_a_cancel_reaches_all_workers(waiting, selection, chosen):
    _, _, trainer, _, last = waiting
    rows = await last.cancel(**selection)
    assert sorted(row.rollout_id for row in rows) == sorted(chosen)
    assert all(row.cancelled for row in rows)
    for name in chosen:
        assert (await trainer.outcome(name, timeout=20)).status is OutcomeStatus.CANCELLED
    left = RolloutFilter(states=(RolloutState.RUNNING,))
    assert {row.rollout_id async for row in last.rollouts(left)} == {*IDS} - {*chosen}


async def test_a_cancel_before_its_init_holds_wherever_the_init_comes(waiting):
    _, _, trainer, first, last = waiting
    (row,) = await last.cancel("early")
    assert row.disposition == "UNKNOWN"
    await first.init(rollout_id="early", messages=QUESTION, callback=trainer.callback())
    assert (await trainer.outcome("early", timeout=20)).status is OutcomeStatus.CANCELLED
    (row,) = await last.cancel("r5")
    assert row.cancelled
    second = {"rollout_id": "r5", "attempt": 2, "messages": QUESTION, "callback": trainer.callback()}
    await first.init(**second, group=Group("g1", 1, 3))
    assert (await until(lambda: running(first, "r5"))).attempt == 2


async def test_a_cancel_finds_a_rollout_whose_worker_was_away_at_the_first_look(waiting, monkeypatch):
    *_, last = waiting

    async def away(self, owner, rollout_id, attempt=0):
        return dict.fromkeys(self.all, Unavailable("the worker restarts"))

    monkeypatch.setattr(Workers, "find", away)
    rows = [row for name in IDS for row in await last.cancel(name)]
    assert [(row.rollout_id, row.cancelled) for row in rows] == [(name, True) for name in IDS]


async def running(client, name):
    info = await client.get(name)
    return info if info.state is RolloutState.RUNNING else None


async def test_the_events_of_all_workers_come_in_one_stream_and_a_cursor_goes_on(waiting):
    agent, _, _, first, last = waiting

    async def read(client, cursor, enough):
        found = []
        async with aclosing(client.all_events(cursor)) as stream:
            async for cursor, event in stream:
                if event is not None:
                    found.append(event)
                if enough(found):
                    break
        return cursor, found

    cursor, before = await read(last, "", lambda found: len(found) == 2 * len(IDS))
    assert {event.rollout_id for event in before} == {*IDS}
    agent.go.set()
    _, after = await read(
        first, cursor, lambda found: sum(isinstance(event.kind, events.Delivered) for event in found) == len(IDS)
    )
    keys = [(event.rollout_id, event.event_number) for event in (*before, *after)]
    assert len(keys) == len(set(keys))
    for name in IDS:
        numbers = [number for rollout_id, number in keys if rollout_id == name]
        assert numbers == list(range(1, len(numbers) + 1))
    with pytest.raises(InvalidArgument):
        await read(first, "1=x/y", bool)
    with pytest.raises(FailedPrecondition):
        await read(first, "0=another.1", bool)


async def test_the_server_describes_all_workers_and_drains_them(waiting):
    _, cluster, trainer, first, last = waiting
    info = await last.info()
    ports = [server.port for server in cluster.servers]
    assert [worker.port for worker in info.workers] == ports
    assert info.workers[2].journal_id == info.journal_id
    assert (info.capacity.running, info.capacity.max_concurrent) == (len(IDS), 300)
    assert (await last.drain()).running == len(IDS)
    assert all(server.engine.shutdown.draining for server in cluster.servers)
    assert (await first.info()).draining
    with pytest.raises(Unavailable):
        await cluster.call(0, "Init", init_to_wire(InitRequest(request=LATE, callback=trainer.callback())))
    await first.drain(cancel=True)
    assert not any(server.engine.shutdown.draining for server in cluster.servers)


async def test_an_attachment_learns_of_the_workers_and_its_rollouts_run_where_it_is():
    async with workers([CalculatorAgent()]) as cluster:
        async with RawTrainer(cluster.servers[1].address) as raw:
            hello = (await raw.attach()).all("hello")[0]
            assert [worker.port for worker in hello.workers] == [server.port for server in cluster.servers]
        targets = [server.address for server in cluster.servers]
        async with Trainer(targets, EchoPolicy()) as trainer, cluster.client(0) as client:
            outcomes = await asyncio.gather(*(trainer.rollout(rollout_id=name, messages=QUESTION) for name in IDS))
            assert {row.rollout_id async for row in client.rollouts()} == {*IDS}
            assert len({cluster.holders(name)[0] for name in IDS}) == 3
            for outcome in outcomes:
                assert (await trainer.annotate(outcome, id="a", labels=("good",)))[1]


async def test_a_trainer_finds_the_worker_for_each_frame(stack):
    """A trainer that has not started the rollouts tries all workers: their events, and forks of them."""
    agent = Replayable()
    cluster = await stack.enter_async_context(workers([agent]))
    first, second = [Trainer([cluster.servers[0].address], EchoPolicy()) for _ in range(2)]
    await stack.enter_async_context(first)
    await first.wait_for_server(count=3)
    await asyncio.gather(*(first.rollout(rollout_id=name, messages=QUESTION) for name in IDS))
    await stack.enter_async_context(second)
    await second.wait_for_server(count=3)
    for name in IDS[:6]:
        async with aclosing(second.events(name)) as trail:
            assert (await anext(trail)).rollout_id == name
        forked = f"{name}-fork"
        fork = await second.rollout(rollout_id=forked, messages=QUESTION, fork=Fork(name, 1))
        assert fork.status is OutcomeStatus.COMPLETED
        assert cluster.holders(forked) == cluster.holders(name)
    assert len({cluster.holders(name)[0] for name in IDS[:6]}) > 1
    agent.gate = asyncio.Event()
    running = [asyncio.create_task(second.rollout(rollout_id=f"late-{n}", messages=QUESTION)) for n in range(6)]
    await until(lambda: sum(server.engine.capacity().running for server in cluster.servers) == 6)
    assert all(row.cancelled for row in await second.cancel(prefix="late-"))
    assert {outcome.status for outcome in await asyncio.gather(*running)} == {OutcomeStatus.CANCELLED}


async def test_a_worker_that_restarts_is_named(waiting, monkeypatch):
    monkeypatch.setattr(siblings, "PATIENCE", 0.0)
    _, cluster, trainer, first, last = waiting
    away = cluster.holders("r0")[0]
    here = 2 if away == 0 else 0
    name = f"worker {away} of this server, with the port {cluster.servers[away].port}, is restarting"
    await cluster.stop(away)
    for method, request in (
        ("GetRollout", control_pb2.GetRolloutRequest(rollout_id="r0")),
        ("Cancel", control_pb2.CancelRequest(rollout_id="r0")),
        ("Cancel", control_pb2.CancelRequest(all=control_pb2.AllRollouts())),
        ("Drain", control_pb2.DrainRequest()),
        ("ListRollouts", control_pb2.ListRolloutsRequest()),
    ):
        with pytest.raises(Unavailable, match=name) as refused:
            await cluster.call(here, method, request)
        assert refused.value.retry_after == 1.0
    again = RolloutRequest(rollout_id="r0", messages=QUESTION, group=Group("g0", 0, 3))
    with pytest.raises(DeadlineExceeded, match=f"{name}; it possibly has the rollout"):
        await cluster.call(here, "Init", init_to_wire(InitRequest(request=again, callback=trainer.callback())))
    client = last if away == 0 else first
    (other,) = [name for name in IDS if cluster.holders(name) != [away]][:1]
    assert (await client.get(other)).rollout_id == other
    assert (await client.info()).capacity.running < len(IDS)


async def test_lists_and_questions_wait_for_a_worker_that_restarts(tmp_path):
    agent = Waiter()
    agent.go.set()
    async with (
        CallbackTrainer(EchoPolicy()) as trainer,
        workers([agent], 2, state=tmp_path) as cluster,
        cluster.client(0) as client,
    ):
        for name in IDS:
            await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
            await trainer.outcome(name, timeout=20)
        (away,) = [name for name in IDS if cluster.holders(name) == [1]][:1]
        await cluster.stop(1)
        questions = control_pb2.ListRolloutsRequest(), control_pb2.GetRolloutRequest(rollout_id=away)
        calls = [
            asyncio.ensure_future(cluster.call(0, method, request))
            for method, request in zip(("ListRollouts", "GetRollout"), questions, strict=True)
        ]
        await asyncio.wait(calls, timeout=0.3)
        assert not any(call.done() for call in calls)
        await cluster.start(1)
        page, found = await asyncio.gather(*calls)
        assert [row.rollout_id for row in page.rollouts] == IDS
        assert found.rollout.rollout_id == away


MINE, YOURS, ADMIN = "token-of-mine", "token-of-yours", "token-of-the-admin"


async def test_owners_are_kept_apart_by_all_workers():
    agent = Waiter()
    security = ServerSecurity([f"mine={MINE}", f"yours={YOURS}"], admin_tokens=ADMIN)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(workers([agent], security=security))
        trainer = await stack.enter_async_context(CallbackTrainer(EchoPolicy()))
        mine = await stack.enter_async_context(cluster.client(0, token=MINE))
        yours = [await stack.enter_async_context(cluster.client(worker, token=YOURS)) for worker in range(3)]
        for name in IDS:
            await mine.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
        assert len({cluster.holders(name)[0] for name in IDS}) == 3
        for client in yours:
            assert [row async for row in client.rollouts()] == []
            assert await client.cancel(everything=True) == []
            for name in IDS:
                with pytest.raises(NotFound):
                    await client.get(name)
                with pytest.raises(NotFound):
                    await client.annotate(name, Annotation(id="a", labels=("x",)))
                with pytest.raises(NotFound):
                    await anext(client.events(name))
                with pytest.raises(AlreadyExists):
                    await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
                assert (await client.cancel(name))[0].disposition == "UNKNOWN"
            with pytest.raises(Exception, match="administrator"):
                await client.drain()
        assert [row.state async for row in mine.rollouts()] == [RolloutState.RUNNING] * len(IDS)
        async with cluster.client(1, token=ADMIN) as admin:
            await admin.drain()
        assert all(server.engine.shutdown.draining for server in cluster.servers)


async def test_certificates_are_checked_once_and_name_the_owner_at_every_worker(tmp_path):
    files = Files(tmp_path / "files")
    files.issue("server", "127.0.0.1")
    for name in ("me", "you"):
        files.issue(name, common_name=name)
    agent = Waiter()
    security = ServerSecurity(tls=files.server(client_ca=files.ca))
    async with (
        workers([agent], security=security) as cluster,
        CallbackTrainer(EchoPolicy()) as trainer,
        cluster.client(0, tls=files.client("me")) as mine,
        cluster.client(1, tls=files.client("me")) as other,
        cluster.client(2, tls=files.client("you")) as yours,
    ):
        for name in IDS:
            await mine.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
            assert (await other.get(name)).rollout_id == name
            with pytest.raises(NotFound):
                await yours.get(name)
        assert len({cluster.holders(name)[0] for name in IDS}) == 3


@pytest.mark.parametrize("metadata", [(), (("osmosis-worker-secret", SECRET + "x"), ("osmosis-owner-bin", b"mine"))])
async def test_only_workers_are_answered_at_the_socket_of_a_worker(metadata):
    async with workers([CalculatorAgent()], 2) as cluster:
        socket = cluster.servers[1].routes.siblings.config.socket(1)
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = services_pb2_grpc.RolloutServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetServerInfo(control_pb2.GetServerInfoRequest(), metadata=metadata)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_server_of_one_process_becomes_one_of_several(tmp_path):
    """Its cursors and page tokens go on, and it knows its rollouts wherever their hash leads."""
    agent = Waiter()
    agent.go.set()
    async with CallbackTrainer(EchoPolicy()) as trainer:
        inits = [{"rollout_id": name, "messages": QUESTION, "callback": trainer.callback()} for name in IDS]
        async with AgentServer([agent], port=0, state_dir=tmp_path) as one, RolloutClient(one.address) as client:
            for init in inits:
                await client.init(**init)
                await trainer.outcome(init["rollout_id"], timeout=20)
            _, token = await client.page(limit=7)
        async with workers([agent], state=tmp_path) as cluster, cluster.client(1) as client:
            for init in inits:
                assert not (await client.init(**init)).created
            assert [row.rollout_id for row in (await client.page(token=token))[0]] == IDS[7:]
            await client.init(rollout_id="more", messages=QUESTION, callback=trainer.callback())
            assert len([row async for row in client.rollouts()]) == len(IDS) + 1
