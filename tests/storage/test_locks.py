"""A process stops when its files or its lock are gone; programs that it starts can share its lock."""

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from osmosis_grpc.protocol.errors import LedgerError, TrainerFailed
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.lock_file import Lock, Locked, LockLost, is_held, share
from osmosis_grpc.storage.sqlite.database import FilesLost
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer import Trainer

PATIENCE = 10.0


def replace(path):
    shutil.copy(path, f"{path}.new")
    os.replace(f"{path}.new", path)


def cut(path):
    os.truncate(path, 0)


HOW = {
    "the file is removed": ("", os.unlink),
    "its log is removed": ("-wal", os.unlink),
    "the index of its log is removed": ("-shm", os.unlink),
    "the file is replaced": ("", replace),
    "the file is cut": ("", cut),
}


@pytest.mark.parametrize("how", HOW)
async def test_a_server_fails_when_the_files_of_its_journal_are_lost(tmp_path, how):
    failed = asyncio.get_running_loop().create_future()
    supervisor = Supervisor("the server", failed.set_result)
    SqliteJournal(tmp_path / "state").close()  # now its rows are in the file, and not in the log
    journal = SqliteJournal(tmp_path / "state", supervisor=supervisor)
    durable = asyncio.get_running_loop().create_future()
    journal.barrier(durable.set_result)
    assert await asyncio.wait_for(durable, PATIENCE)
    end, harm = HOW[how]
    harm(f"{journal.path}{end}")
    assert isinstance(await asyncio.wait_for(failed, PATIENCE), FilesLost)
    assert f"{journal.path}{end}" in journal.problem
    journal.close()


@pytest.mark.parametrize("how", HOW)
async def test_nothing_is_committed_to_a_ledger_whose_files_are_lost(tmp_path, how):
    await (await SqliteLedger.open(tmp_path / "ledger", 60.0)).close()  # as above
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    await asyncio.wait_for(ledger.confirm("before", 1, "x"), PATIENCE)
    end, harm = HOW[how]
    harm(f"{tmp_path / 'ledger'}{end}")
    with pytest.raises(LedgerError):
        await asyncio.wait_for(ledger.confirm("after", 1, "x"), PATIENCE)
    await ledger.close()


async def test_a_file_that_its_own_process_makes_shorter_is_not_lost(tmp_path):
    failed = asyncio.get_running_loop().create_future()
    journal = SqliteJournal(tmp_path / "state", supervisor=Supervisor("the server", failed.set_result))
    for _ in range(3):
        durable = asyncio.get_running_loop().create_future()
        journal.keep_version("x" * 50_000, {})
        journal.barrier(durable.set_result)
        assert await asyncio.wait_for(durable, PATIENCE)
    assert not failed.done()
    journal.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "its folder is gone"])
def test_a_lock_detects_that_its_file_was_removed(tmp_path, how):
    folder = tmp_path / "folder"
    folder.mkdir()
    lock = Lock(folder / "lock")
    lock.check()
    if how == "its folder is gone":
        shutil.rmtree(folder)
    else:
        (folder / "lock").unlink()
    if how == "replaced":
        other = Lock(folder / "lock")
        other.check()
        other.close()
    with pytest.raises(LockLost, match=r"was (removed|replaced)"):
        lock.check()
    lock.close()


def test_a_relative_path_is_checked_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = Lock(type(tmp_path)("lock"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    lock.check()
    lock.close()


async def test_of_two_trainers_on_one_ledger_the_first_stops_before_it_writes(tmp_path):
    path = tmp_path / "ledger"
    async with Trainer(["127.0.0.1:1"], lambda request: None, ledger=path) as trainer:
        waiting = asyncio.ensure_future(asyncio.wait_for(trainer.rollout(rollout_id="r"), PATIENCE))
        await asyncio.sleep(0)
        os.unlink(f"{path}.lock")
        second = await SqliteLedger.open(path, 60.0)  # takes the ledger over
        with pytest.raises(TrainerFailed, match=r"ledger\.commit.*the lock .*ledger\.lock was re(placed|moved)"):
            await waiting
        await asyncio.wait_for(second.confirm("x", 1, "x"), PATIENCE)
        await second.close()


async def test_nothing_is_committed_after_the_lock_was_lost(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    await asyncio.wait_for(ledger.confirm("before", 1, "x"), PATIENCE)
    os.unlink(tmp_path / "ledger.lock")
    with pytest.raises(LedgerError, match=r"ledger\.lock was removed"):
        await asyncio.wait_for(ledger.confirm("after", 1, "x"), PATIENCE)
    await ledger.close()


async def test_a_journal_whose_lock_is_gone_fails_its_server(tmp_path):
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    supervisor = Supervisor("the server", failed.set_result)
    journal = SqliteJournal(tmp_path / "state", supervisor=supervisor)
    os.unlink(tmp_path / "state" / "lock")
    assert isinstance(await asyncio.wait_for(failed, PATIENCE), LockLost)
    assert "was removed" in journal.problem
    journal.close()


CHILD = """
import sys
from pathlib import Path
from osmosis_grpc.storage.lock_file import Lock, share
path = Path(sys.argv[1])
share(path, int(sys.argv[2]))
lock = Lock(path)
print("has it", flush=True)
sys.stdin.readline()
lock.close()
print("closed it", flush=True)
sys.stdin.readline()
"""


def child(path, lock):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(lock.descriptor)],
        pass_fds=[lock.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_shared_lock_is_held_while_one_of_both_has_it(tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    with child(path, lock) as other:
        assert other.stdout.readline() == "has it\n"
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "closed it\n"
        assert is_held(path), "the close of a shared lock releases nothing"
        with pytest.raises(Locked, match=str(os.getpid())):
            Lock(path)
    with child(path, lock) as other:
        assert other.stdout.readline() == "has it\n"
        lock.leave()
        assert is_held(path), "the program has it still"
        other.kill()
        other.wait()
    assert not is_held(path)
    Lock(path).close()


def test_a_lock_is_shared_once(tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    share(path, os.dup(lock.descriptor))
    shared = Lock(path)
    shared.close()
    assert is_held(path)
    with pytest.raises(Locked):
        Lock(path)
    lock.close()
    assert not is_held(path)
