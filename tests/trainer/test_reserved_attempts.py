"""The next attempt of a rollout whose outcome no caller has: it is reserved before the cancel, and only if needed."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, Superseded, Unavailable
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.ledger.rows import ChatRow
from osmosis_grpc.supervise import Supervisor, System
from osmosis_grpc.testing.raw.server_frames import accepted, init_reply, status, window
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig
from tests.attach.cutting_proxy import CuttingProxy
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import CODE, collect, within
from tests.trainer.test_higher_attempts import forgotten
from tests.trainer.test_ledger import copied, held_up, requests, rows
from tests.waiting import until

COMPLETED, CANCELLED = OutcomeStatus.COMPLETED, outcome_pb2.OUTCOME_STATUS_CANCELLED
BOTH = pytest.mark.parametrize("transport", ["attach", "callback"])
DURABLE = pytest.mark.parametrize("durable", [True, False])
REFUSED = status(grpc.StatusCode.INVALID_ARGUMENT)


async def leave(task):
    task.cancel()
    await asyncio.wait({task})


async def begun(trainer, agent, name):
    await until(lambda: agent.running[name] and trainer.scheduler.rollouts[name].opened)


async def left(listening, ledger):
    """Returns a deployment, its server, and the Init of a rollout whose caller has left and that has ended."""
    deployment = await listening(ledger=ledger)
    server = await deployment.server()
    await server.attach()
    call = deployment.run("r")
    request = await server.accept()
    await leave(call)
    await server.complete(request, status=CANCELLED)
    return deployment, server, request


def attempt_of(trainer, name="r0"):
    return trainer.scheduler.rollouts[name].request.attempt


@BOTH
async def test_a_kill_before_the_commit_leaves_the_attempt_running_and_one_after_it_does_not(
    serve, tmp_path, transport
):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("g-1")
    server, tasks = await serve(agent), [RolloutRequest(rollout_id="g", messages=[USER])]
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        loop = asyncio.create_task(collect(trainer.groups(tasks, group_size=2)))
        await begun(trainer, agent, "g-1")
        await until(lambda: "g-0" not in trainer.scheduler.rollouts)
        await trainer.scheduler.ledger.written()
        before = copied(path, "before")
        with held_up(trainer.scheduler.ledger):
            await leave(loop)
            assert agent.running["g-1"], "it is cancelled after the commit"
        await until(lambda: not agent.running["g-1"])
        after = copied(path, "after")
    assert rows(before, "SELECT attempt FROM rollout WHERE rollout_id = 'g-1'") == [(1,)]
    agent.release()
    async with Trainer([server.address], reply, transport=transport, ledger=after) as trainer:
        (group,) = await collect(trainer.groups(tasks, group_size=2))
        assert [each.attempt for each in group] == [1, 2]


@BOTH
async def test_a_rollout_that_was_never_sent_runs_as_the_same_attempt(serve, tmp_path, transport):
    server = await serve(talker())
    async with Trainer([server.address], reply, transport=transport, ledger=tmp_path / "ledger") as trainer:
        await until(lambda: trainer.servers[0].attached)
        with held_up(trainer.scheduler.ledger):
            first = asyncio.create_task(trainer.rollout(requests(1)[0]))
            await until(lambda: "r0" in trainer.scheduler.rollouts and trainer.scheduler.rollouts["r0"].server)
            await leave(first)
        outcome = await within(trainer.rollout(requests(1)[0]))
        assert outcome.status is COMPLETED


@BOTH
@DURABLE
async def test_a_late_cancel_of_the_lower_attempt_does_not_cancel_the_next_one(serve, tmp_path, transport, durable):
    agent = talker()
    agent.gate("r0")
    server, ledger = await serve(agent), tmp_path / "ledger" if durable else None
    async with (
        CuttingProxy(server.address) as proxy,
        Trainer([proxy.address], reply, transport=transport, ledger=ledger) as trainer,
    ):
        first = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await begun(trainer, agent, "r0")
        proxy.hold("up")
        await leave(first)
        agent.release()
        second = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await until(lambda: attempt_of(trainer) == 2 and trainer.scheduler.rollouts["r0"].sent)
        proxy.cut()
        assert (await within(second)).status is COMPLETED


@BOTH
async def test_a_superseded_trainer_does_not_take_the_attempt_of_the_other_one(serve, transport):
    agent = talker()
    agent.gate("r0")
    server, (request,) = await serve(agent), requests(1)
    async with (
        Trainer([server.address], reply, transport=transport) as one,
        Trainer([server.address], reply, transport=transport) as two,
    ):
        first = asyncio.create_task(one.rollout(request))
        await begun(one, agent, "r0")
        higher = asyncio.create_task(two.rollout(replace(request, attempt=2)))
        with pytest.raises(Superseded):
            await within(first)
        with pytest.raises(Superseded):
            await within(one.rollout(request))
        agent.release()
        assert (await within(higher)).attempt == 2


async def test_lower_attempts_are_cancelled_without_a_ledger_too(listening):
    deployment = await listening(max_attempts=1)
    server = await deployment.server()
    await server.attach(max_open_rollouts=1)
    call = deployment.run("r")
    await server.send(forgotten(await server.accept()))
    with pytest.raises(Unavailable):
        await call
    deployment.run("r")
    request = await server.accept()
    deployment.run("r", attempt=3)
    assert (await server.stream.next("cancel")).request.attempt == 2
    assert (await server.ask(request)).status.code == CODE["ABORTED"]


@pytest.mark.slow
@DURABLE
async def test_a_request_that_no_server_can_take_changes_nothing(serve, tmp_path, durable):
    agent, path = talker(), tmp_path / "servers"
    agent.gate("r0")
    server, ledger = await serve(agent), tmp_path / "ledger" if durable else None
    path.write_text(server.address)
    async with Trainer(path, reply, ledger=ledger, config=TrainerConfig(lost_after=3.0)) as trainer:
        first = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await begun(trainer, agent, "r0")
        path.write_text("# none")
        await until(lambda: trainer.scheduler.servers.given_up)
        await leave(first)
        with pytest.raises(Unavailable, match="names no server"):
            await within(trainer.rollout(requests(1)[0]))
        path.write_text(server.address)
        await until(lambda: not trainer.scheduler.servers.given_up and any(each.attached for each in trainer.servers))
        agent.release()
        assert (await within(trainer.rollout(requests(1)[0]))).status is COMPLETED


async def test_a_refused_higher_attempt_does_not_free_the_number_of_a_lower_one(listening, tmp_path):
    deployment, server, _ = await left(listening, tmp_path / "ledger")
    call = deployment.run("r", attempt=5)
    request = await server.stream.next("init")
    await server.send(init_reply(request, status=REFUSED))
    with pytest.raises(InvalidArgument):
        await call
    next_process = await listening(ledger=copied(tmp_path / "ledger"))
    server = await next_process.server()
    await server.attach()
    next_process.run("r")
    assert (await server.stream.next("init")).attempt == 6


@DURABLE
async def test_a_group_whose_retry_was_left_in_the_queue_runs_again(listening, tmp_path, durable):
    deployment = await listening(ledger=tmp_path / "ledger" if durable else None)
    server, trainer = await deployment.server(), deployment.trainer
    await server.attach(max_open_rollouts=2)
    tasks = [RolloutRequest(rollout_id="g", agent_loop="talk", messages=[USER])]
    loop = asyncio.create_task(collect(trainer.groups(tasks, group_size=2, retries=1)))
    first, second = await server.accept(), await server.accept()
    await server.send(window(1))
    await server.complete(first, status=outcome_pb2.OUTCOME_STATUS_FAILED)
    await until(lambda: attempt_of(trainer, "g-0") == 2)
    await leave(loop)
    await server.complete(second, status=CANCELLED)
    await server.send(window(2))
    loop = asyncio.create_task(collect(trainer.groups(tasks, group_size=2, retries=1)))
    inits = [await server.accept(), await server.accept()]
    assert {init.rollout_id: init.attempt for init in inits} == {"g-0": 3, "g-1": 2}
    await leave(loop)


async def test_an_attempt_that_was_accepted_with_unreadable_tools_is_not_used_again(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    call = deployment.run("r")
    await server.send(accepted(await server.stream.next("init"), message_pb2.Tool(extra_json="{")))
    with pytest.raises(Internal):
        await call
    deployment.run("r")
    assert (await server.stream.next("init")).attempt == 2


@pytest.mark.parametrize("waited", [False, True])
async def test_a_refused_attempt_keeps_its_number_also_after_a_time_without_servers(listening, tmp_path, waited):
    deployment = await listening(ledger=tmp_path / "ledger", lost_after=0.3)
    if waited:
        with pytest.raises(Unavailable):
            await deployment.run("r")
    server = await deployment.server()
    await server.attach()
    for _ in range(2):
        call = deployment.run("r")
        request = await server.stream.next("init")
        assert request.attempt == 1
        await server.send(init_reply(request, status=REFUSED))
        with pytest.raises(InvalidArgument):
            await call


async def test_no_chat_of_a_reserved_attempt_is_sampled(listening, tmp_path, policy):
    _, server, request = await left(listening, tmp_path / "ledger")
    request.attempt = 2
    assert (await server.ask(request)).status.code == CODE["FAILED_PRECONDITION"]
    assert policy.asked == []
    next_process = await listening(ledger=copied(tmp_path / "ledger"))
    server = await next_process.server()
    await server.attach()
    next_process.run("r")
    assert (await server.stream.next("init")).attempt == 2


@pytest.mark.parametrize("ttl", [60.0, 0.0])
async def test_a_late_chat_of_a_rollout_that_was_left_does_not_stay_in_the_ledger(tmp_path, ttl):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    ledger.reserve("r", 2, lambda *_: None)
    ledger.chat(ChatRow("r", 1, "main", 1, 0, "", b"", b""), lambda *_: None, enter=False)
    await ledger.written()
    await ledger.close()
    await (await SqliteLedger.open(tmp_path / "ledger", ttl)).close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as database:
        assert database.execute("SELECT count(*) FROM chat").fetchone() == (0,)


async def test_a_reserved_attempt_is_forgotten_after_its_time_by_short_processes_too(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    done = asyncio.get_running_loop().create_future()
    ledger.reserve("r", 2, lambda _, error: done.set_result(error))
    assert await within(done) is None
    await ledger.close()
    for ttl, left in ((60.0, ["r"]), (0.0, [])):
        ledger = await SqliteLedger.open(tmp_path / "ledger", ttl)
        assert [row.rollout_id for row in ledger.take_restored()] == left
        await ledger.close()


async def test_the_late_outcome_of_a_rollout_that_was_left_renews_the_time_of_its_reservation(tmp_path):
    clock = System()
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0, Supervisor("the ledger", system=clock))
    for now in (1000.0, 5000.0):
        done = asyncio.get_running_loop().create_future()
        clock.time = lambda now=now: now
        ledger.reserve("r", 2, lambda _, error, done=done: done.set_result(error))
        assert await within(done) is None
    await ledger.close()
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0, Supervisor("the ledger", system=clock))
    assert [row.reserved for row in ledger.take_restored()] == [5000.0]
    await ledger.close()


async def test_a_damaged_time_in_a_running_rollout_does_not_make_it_an_old_reservation(listening, tmp_path):
    deployment = await listening(ledger=tmp_path / "ledger")
    server = await deployment.server()
    await server.attach()
    deployment.run("r")
    await server.accept()
    await deployment.trainer.scheduler.ledger.written()
    path = copied(tmp_path / "ledger")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE rollout SET ended = 1.0")
    async with Trainer([], reply, listen="127.0.0.1:0", ledger=path) as trainer:
        (outcome,) = await collect(trainer.unconfirmed())
    assert outcome.failure.reason == FailureReason.DATA_LOSS


async def test_a_note_cannot_take_the_name_of_a_note_of_the_trainer(tmp_path):
    async with Trainer([], reply, listen="127.0.0.1:0", ledger=tmp_path / "ledger") as trainer:
        with pytest.raises(InvalidArgument) as refused:
            await trainer.write_note("osmosis_grpc.process", {})
    assert refused.value.violations[0][0] == "name"
