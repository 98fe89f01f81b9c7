"""The disk is full or read-only, or the file is damaged. New rollouts are refused; running ones go on."""

import asyncio
import os
import random
import signal
import sqlite3
from contextlib import closing

import pytest

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Callback
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.attach.policies import CountingPolicy, check_run, requests
from tests.attach.servers import ServerProcess
from tests.deployment import health
from tests.faults.disks import Broken, Limited, mounted, small_disk
from tests.processes import run
from tests.serve.workers.server import started
from tests.waiting import is_empty, until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "--no-http", "--grpc-port", "0")
SERVING, NOT_SERVING = "SERVING", "NOT_SERVING"


async def healthy(address: str) -> None:
    async def serving() -> bool:
        return await health(address) == "SERVING"

    await until(serving)


def running(trainer, asked, outcomes) -> asyncio.Task:
    async def gather() -> None:
        async for outcome in trainer.run(asked, max_in_flight=len(asked)):
            outcomes.append(outcome)

    return asyncio.create_task(gather())


@pytest.fixture(params=["limit", "small disk", "errors of the disk"])
def disk(request, tmp_path, monkeypatch):
    if request.param == "errors of the disk":
        broken = Broken(tmp_path)
        for name, value in broken.environment.items():
            monkeypatch.setenv(name, value)
        yield broken
        return
    if request.param == "limit":
        yield Limited(tmp_path / "state")
        return
    with small_disk(tmp_path) as disk:
        yield disk


@pytest.mark.long
async def test_a_full_disk_takes_nothing_in_and_stops_nothing(stack, disk):
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(disk.folder)))
    policy, outcomes = CountingPolicy(), []
    policy.gate.clear()
    trainer = await stack.enter_async_context(Trainer([server.address], policy))
    client = await stack.enter_async_context(RolloutClient(server.address))
    asked = list(requests("full", 8))
    at_work = running(trainer, asked, outcomes)
    await until(lambda: policy.open == 8, "a chat open in each")

    disk.fill(server.process.pid)
    for number in range(3):
        with pytest.raises(Unavailable, match="the journal cannot be written"):
            (request,) = requests(f"refused-{number}", 1)
            await client.init(request, callback=Callback(target="127.0.0.1:9"))
    assert await health(server.address) == NOT_SERVING
    assert await health(server.address, "liveness") == SERVING
    policy.gate.set()
    await at_work  # from memory
    check_run([request.rollout_id for request in asked], outcomes, policy)
    known = [info.rollout_id async for info in client.rollouts()]
    assert not [name for name in known if name.startswith("refused")]

    disk.free()
    await healthy(server.address)
    more = list(requests("more", 4))
    await running(trainer, more, outcomes)
    check_run([request.rollout_id for request in asked + more], outcomes, policy)

    await server.end(signal.SIGKILL)
    await server.start()
    await healthy(server.address)
    delivered = {request.rollout_id for request in asked}
    assert not delivered & {info.rollout_id async for info in client.rollouts()}
    last = list(requests("last", 2))
    await running(trainer, last, outcomes)
    check_run([request.rollout_id for request in asked + more + last], outcomes, policy)
    await until(lambda: is_empty(client.rollouts(undelivered=True)))


@pytest.mark.long
async def test_a_disk_that_fills_up_by_itself(stack, tmp_path):
    """The trainer sends refused rollouts again, and they run once the disk has space."""
    with small_disk(tmp_path) as disk:
        server = await stack.enter_async_context(ServerProcess("--state-dir", str(disk.folder)))
        policy, outcomes = CountingPolicy(latency=(0.0, 0.002)), []
        trainer = await stack.enter_async_context(Trainer([server.address], policy))
        asked = list(requests("many", 600, think=0.002))
        async with asyncio.timeout(50):
            at_work = running(trainer, asked, outcomes)
            while await health(server.address) == SERVING:
                await asyncio.sleep(0.05)  # between two looks at the health
                assert not at_work.done(), "4 MiB were enough: ask for more"
            before = len(outcomes)
            await until(lambda: not policy.open, "running rollouts have ended")
            disk.folder.parent.joinpath("ballast").touch()
            os.system(f"mount -o remount,size=64m {disk.folder.parent}")
            await at_work
        assert before < 600
        check_run([request.rollout_id for request in asked], outcomes, policy)
        await server.end(signal.SIGTERM)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "state").mkdir()
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "ro", "none"):
        result = run("-m", "osmosis_grpc.serve", *CALCULATOR, "--state-dir", str(tmp_path / "state"))
    assert result.returncode == 2
    assert "Read-only file system" in result.stderr
    assert "--state-dir chooses another" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_journal_is_said(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"this is my diary, and no journal" * 300)
    result = run("-m", "osmosis_grpc.serve", *CALCULATOR, "--state-dir", str(tmp_path))
    assert result.returncode == 2
    assert "cannot be used as a journal" in result.stderr
    assert "--no-journal" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "journal.db").read_bytes().startswith(b"this is my diary"), (
        "a file of another program is not overwritten"
    )


async def written(folder, stack, count: int = 12) -> list[str]:
    """A journal with rollouts, half of them open, its server killed."""
    server = ServerProcess("--state-dir", str(folder))
    policy, outcomes = CountingPolicy(), []
    async with server, Trainer([server.address], policy) as trainer:
        done = list(requests("done", count))
        await running(trainer, done, outcomes)
        policy.gate.clear()
        left = running(trainer, list(requests("open", count)), outcomes)
        await until(lambda: policy.open == count, "chats open")
        await server.end(signal.SIGKILL)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    return [request.rollout_id for request in done]


@pytest.mark.long
async def test_what_sqlite_can_read_of_a_spoiled_journal_is_in_a_fresh_one(stack, tmp_path):
    """The newest page of events is damaged: the server goes on with the other rows, and keeps the damaged file."""
    done = await written(tmp_path, stack)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (last,) = database.execute("SELECT body FROM events ORDER BY position DESC LIMIT 1").fetchone()
    spoiled = bytearray((tmp_path / "journal.db").read_bytes())
    page = spoiled.rindex(last[:64]) // 8192
    spoiled[page * 8192 : page * 8192 + 64] = random.Random(5).randbytes(64)
    (tmp_path / "journal.db").write_bytes(spoiled)
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    client = await stack.enter_async_context(RolloutClient(server.address))
    states = {info.rollout_id: info.state async for info in client.rollouts()}
    assert {states[name] for name in done} <= {"COMPLETED", "FAILED"}
    assert "COMPLETED" in states.values()
    assert await health(server.address) == SERVING
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert aside.read_bytes() == spoiled


@pytest.mark.long
@pytest.mark.parametrize("how", ["torn", "garbage"])
async def test_a_torn_tail_costs_what_was_torn_and_no_more(stack, tmp_path, how):
    done = await written(tmp_path, stack)
    wal = tmp_path / "journal.db-wal"
    assert wal.stat().st_size > 4096, "the last commits are there"
    if how == "torn":
        os.truncate(wal, wal.stat().st_size - 1500)
    else:
        with wal.open("ab") as file:
            file.write(random.Random(6).randbytes(3 * 4120 + 100))
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    client = await stack.enter_async_context(RolloutClient(server.address))
    states = {info.rollout_id: info.state async for info in client.rollouts()}
    assert {states[name] for name in done} == {"COMPLETED"}
    assert await health(server.address) == SERVING


@pytest.mark.long
async def test_a_full_disk_under_workers_stops_nothing(stack, tmp_path):
    """New rollouts wait at the trainer until there is space."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with (
        small_disk(folder) as disk,
        started(
            tmp_path, "-m", "tests.attach.agents:agents", "--no-validate", "--state-dir", str(disk.folder), module=False
        ) as server,
    ):
        policy, outcomes, later = CountingPolicy(), [], []
        policy.gate.clear()
        trainer = await stack.enter_async_context(Trainer(server.targets, policy))
        asked, more = list(requests("full", 16)), list(requests("later", 16))
        at_work = running(trainer, asked, outcomes)
        await until(lambda: policy.open == 16, "a chat open in each")
        disk.fill(0)
        waiting = running(trainer, more, later)
        policy.gate.set()
        await at_work  # from memory
        for address in server.targets:
            await until(lambda address=address: is_not_serving(address))
            assert await health(address, "liveness") == SERVING
        assert later == []
        disk.free()
        await waiting
        check_run([request.rollout_id for request in asked + more], outcomes + later, policy)


async def is_not_serving(address: str) -> bool:
    return await health(address) == NOT_SERVING
