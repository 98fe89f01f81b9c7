"""A process whose lock file was removed stops before its next commit."""

import asyncio
import os
import shutil

import pytest

from osmosis_grpc.protocol.errors import LedgerError, TrainerFailed
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.lock_file import Lock, LockLost
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer import Trainer

PATIENCE = 10.0


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
